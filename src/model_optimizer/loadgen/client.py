"""A streaming client for OpenAI-compatible servers. Foreign failures become ``RequestTrace.error``, never exceptions.

Kinds of error: ``connect``, ``tls``, ``timeout``, ``disconnected`` (closed without an answer), ``truncated`` (closed
in the middle), ``http_500`` and the like, ``server_error`` (told inside the stream), ``malformed`` (not JSON, or not
of the expected shape), ``empty`` (no token), ``not_http``, ``not_streaming``, ``client`` (this machine's own limits),
``unfinished`` (still running when the measurement was over). After the kind come a colon and the details.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from model_optimizer.errors import ServerUnusable
from model_optimizer.loadgen.http import Address, BadAnswer, Exchange, clock, render_head
from model_optimizer.records.measurement import RequestTrace

Api = Literal["completions", "chat"]

PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
CONNECT_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 1 << 24
BUFFER_BYTES = 1 << 16
_OUTPUT_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass(slots=True)
class Shot:
    """A request in the making; ``trace()`` freezes it once measuring is over, because validating takes time."""

    scheduled_s: float
    target_prompt_tokens: int
    sent_s: float = 0.0
    end_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    is_done: bool = False  # [DONE] has come
    is_counted: bool = False  # belongs to the measured window

    def trace(self) -> RequestTrace:
        """The same as a record."""
        return RequestTrace(
            scheduled_s=self.scheduled_s,
            sent_s=self.sent_s,
            chunk_s=tuple(self.chunk_s),
            end_s=self.end_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            target_prompt_tokens=self.target_prompt_tokens,
            finish_reason=self.finish_reason,
            error=self.error,
        )

    def take(self, payload: bytes, arrived_s: float) -> None:
        """One server-sent event: a piece of the answer, the usage, an error, or ``[DONE]``."""
        if payload == b"[DONE]":
            self.is_done = True
            return
        try:
            event = orjson.loads(payload)
            if event.get("error"):
                raise BadAnswer(f"server_error: {_message(event['error'])}")
            if choices := event.get("choices"):
                choice = choices[0]
                delta = choice.get("delta") or {}
                if choice.get("text") or any(delta.get(name) for name in _OUTPUT_FIELDS):
                    self.chunk_s.append(arrived_s)
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if usage := event.get("usage"):
                self._count(usage)
        except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
            raise BadAnswer(f"malformed: {payload[:120].decode('utf-8', 'replace')!r} ({error})") from None

    def _count(self, usage: Mapping[str, Any]) -> None:
        self.prompt_tokens = int(usage["prompt_tokens"])
        self.output_tokens = int(usage["completion_tokens"])
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        self.cached_tokens = self.cached_tokens if cached is None else int(cached)


class EventStream:
    """Server-sent events out of pieces cut anywhere. Comments (pings) and other fields are skipped.

    Lines end with LF or CRLF; an event ends with an empty line. llama.cpp's older servers tell of errors in an
    ``error:`` field, which becomes ``{"error": …}``.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads of the events that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [payload for line in lines if (payload := self._line(line.removesuffix(b"\r"))) is not None]

    def close(self) -> list[bytes]:
        """What is left at the end of the stream: servers may leave out the last empty line."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"error:"):
            self._data.append(b'{"error":' + line[6:] + b"}")
        return None


class Reply(NamedTuple):
    """A whole answer. ``error`` is set instead of a status where none came."""

    status: int
    content_type: str
    body: bytes
    error: str | None = None

    def json(self) -> Any:
        """The body as JSON; ``None`` where it is not."""
        try:
            return orjson.loads(self.body)
        except ValueError:
            return None


class Client:
    """Sends requests to one server. Use as ``async with``: leaving it drops every open connection.

    Raises ``ServerUnusable`` on entering where the host's name is unknown.
    """

    def __init__(
        self, address: Address, *, headers: Mapping[str, str] = {}, api_key: str | None = None, timeout_s: float = 600.0
    ) -> None:
        self._address = address
        self._headers = {"User-Agent": "model-optimizer", "Accept": "*/*", **headers}
        self._secret = (api_key or "").strip()
        if self._secret:
            self._headers["Authorization"] = f"Bearer {self._secret}"
        self._timeout_s = timeout_s
        self._ip = address.host
        self._open: set[Exchange] = set()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    async def __aenter__(self) -> Client:
        """Look the name up once: doing it for every request would be part of every TTFT."""
        self._ip = await _reachable_ip(self._address)
        return self

    async def __aexit__(self, *exc: object) -> None:
        while self._open:
            for exchange in tuple(self._open):
                exchange.abort()
            await asyncio.sleep(0.001)  # the sockets close in the next turns of the loop

    async def get(self, path: str, *, timeout_s: float = 30.0) -> Reply:
        """A plain GET; ``path`` begins with ``/``. Never raises for what the server or the network does."""
        body = bytearray()

        def on_body(piece: bytes, _: float) -> None:
            body.extend(piece)
            if len(body) > MAX_BODY_BYTES:
                raise BadAnswer("malformed: the answer is longer than 16 MiB")

        request = render_head(self._address, "GET", path, self._headers) + b"\r\n\r\n"
        exchange = Exchange(request, on_body, open_ones=self._open, buffer=self._buffer)
        error = await self._run(exchange, timeout_s)
        kind = exchange.headers.get("content-type", "")
        return Reply(exchange.status, kind, bytes(body), self._without_secret(error))

    async def stream(self, path: str, body: Mapping[str, object], shot: Shot) -> None:
        """POST ``body`` and fill ``shot`` with what arrives, until the answer is complete or its error is known.

        Cancelling drops the connection, which tells the server to stop working on it.
        """
        events, refusal = EventStream(), bytearray()

        def on_body(piece: bytes, arrived_s: float) -> None:
            if not exchange.is_stream:
                refusal.extend(piece[:4096])
                return
            for payload in events.feed(piece):
                shot.take(payload, arrived_s)
            if shot.is_done:
                exchange.finish()

        data = orjson.dumps(body)
        headers = {**self._headers, "Content-Type": "application/json", "Content-Length": str(len(data))}
        request = render_head(self._address, "POST", path, headers) + b"\r\n\r\n" + data
        exchange = Exchange(request, on_body, open_ones=self._open, buffer=self._buffer)
        error = await self._run(exchange, self._timeout_s)
        shot.sent_s = exchange.sent_s or clock()
        shot.end_s = clock()
        shot.error = self._without_secret(error or _verdict(exchange, shot, events, bytes(refusal)))

    async def _run(self, exchange: Exchange, timeout_s: float) -> str | None:
        """Connect, send, wait for the end. Every failure of the network becomes an error text here, and only here."""
        connected = False
        try:
            async with asyncio.timeout(timeout_s):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._connect(exchange)
                connected = True
                await exchange.ended
        except TimeoutError:
            exchange.abort()
            return f"timeout: no end after {timeout_s:g} s" if connected else "connect: no connection in time"
        except asyncio.CancelledError:
            exchange.abort()
            raise
        except ssl.SSLError as error:
            return f"tls: {error}"
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL):
                return f"client: {error.strerror}"
            return f"connect: {error.strerror or error}"
        return exchange.error

    async def _connect(self, exchange: Exchange) -> None:
        loop = asyncio.get_running_loop()
        name = self._address.host if self._address.tls else None
        await loop.create_connection(
            lambda: exchange, self._ip, self._address.port, ssl=self._address.tls, server_hostname=name
        )

    def _without_secret(self, text: str | None) -> str | None:
        """Servers may quote the key that they refuse."""
        return text.replace(self._secret, "***") if text and self._secret else text


def _verdict(exchange: Exchange, shot: Shot, events: EventStream, refusal: bytes) -> str | None:
    """The HTTP exchange went well; did the answer?"""
    if exchange.status != 200:
        return f"http_{exchange.status}: {_excerpt(refusal)}"
    if not exchange.is_stream:
        kind = exchange.headers.get("content-type")
        return f"not_streaming: {kind} instead of text/event-stream: {_excerpt(refusal)}"
    try:
        for payload in events.close():
            shot.take(payload, clock())
    except BadAnswer as error:
        return str(error)
    if not shot.is_done and shot.finish_reason is None:
        return "truncated: the stream ended without [DONE] and without a finish_reason"
    return None if shot.chunk_s else "empty: the answer has no token"


def _excerpt(body: bytes) -> str:
    """The server's words: the message of a JSON error, else the beginning of the body."""
    try:
        reply = orjson.loads(body)
        return _message(reply.get("error") or reply.get("detail") or reply)
    except (ValueError, AttributeError):
        return " ".join(body[:300].decode("utf-8", "replace").split())


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text or error).split())[:300]


async def _reachable_ip(address: Address) -> str:
    """The first of the host's addresses that accepts a connection (``localhost`` may be two), else the first."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ServerUnusable(
            f"the host {address.host} is unknown",
            cause=str(error),
            fix="check the spelling of the URL, and that this machine can resolve the name",
        ) from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for ip in addresses if len(addresses) > 1 else ():
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(ip, address.port)
        except OSError:
            continue
        writer.close()
        return ip
    return addresses[0]
