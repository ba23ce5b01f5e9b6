"""HTTP/1.1 as little as the load test needs: one request a connection, the answer handed on as it arrives.

Why not a library: a client that parses, wraps and schedules every chunk delays the very moments it is to measure. Here
the arrival time is taken in the event loop's read callback, before any parsing. Asyncio's streams take it a turn of the
loop later, and a plain ``Protocol`` gets every piece in a fresh 256 KiB buffer. Measured with 100 streams of 100 chunks
a second (CPython 3.11, medians of the time from the server's write): streams 0.24 ms and 33 µs of CPU a chunk,
``Protocol`` 0.14 ms and 30 µs, ``BufferedProtocol`` with one buffer for all connections 0.04 ms and 16 µs.

Why a connection of its own for every request: where an engine has a thread for each connection (llama.cpp), kept
connections hold their threads. Of 12 users of one slot, some were served five times while others waited 12 s for their
first answer; with a connection a request all had their turn. And a kept connection may be closed by the server just as
the next request leaves, an error that says nothing about the service. Setting one up takes 0.2 to 0.4 ms on the same
host; to a distant one it takes round trips, which are part of the TTFT and are told in the result's notes.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from model_optimizer.errors import SpecInvalid

clock = time.perf_counter
"""The one clock of all traces: monotonic, seconds."""

MAX_HEAD_BYTES = 65536
LINGER_S = 1.0
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Address(NamedTuple):
    """Where requests go. ``prefix`` is the path before ``/v1``."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """``http://127.0.0.1:8000``, with or without ``/v1``; no scheme means http. Raises ``SpecInvalid``."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise SpecInvalid(
                f"{url!r} is not the address of a server",
                cause="it needs a host, and http or https",
                fix="write for example http://127.0.0.1:8000",
            )
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix)

    @property
    def authority(self) -> str:
        """``host:port`` for the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def render_head(address: Address, method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The request line and headers, without the empty line that ends them. Raises ``SpecInvalid`` for a broken
    header.
    """
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise SpecInvalid(
                f"the header {name!r} cannot be sent",
                cause="its name or value has characters that HTTP does not allow (a line break, for example)",
                fix="check the API key or header for stray characters",
            )
    lines = [f"{method} {address.prefix}{path} HTTP/1.1", f"Host: {address.authority}", "Connection: close"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())]).encode("ascii")


class BadAnswer(Exception):
    """What came is not what it should be. ``str()`` is an error kind and words, as in ``RequestTrace.error``."""


class Exchange(asyncio.BufferedProtocol):
    """One request and its answer. ``on_body(piece, arrived_s)`` gets the decoded body piece by piece.

    ``ended`` is resolved once, when the body is complete, when it breaks off (``error`` then says how), or when the
    owner has seen enough and calls ``finish``; the server then has ``LINGER_S`` to end the connection itself.

    ``buffer`` may be shared by all exchanges of a loop: it is filled and read in one step. ``open_ones`` holds those
    whose connection is open.
    """

    def __init__(
        self,
        request: bytes,
        on_body: Callable[[bytes, float], None],
        *,
        open_ones: set[Exchange],
        buffer: memoryview,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.sent_s = 0.0
        self.error: str | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._on_body = on_body
        self._open_ones = open_ones
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._decode: Callable[[bytes, float], bytes] = self._head
        self._left = 0  # bytes still to come of a body of known length
        self._complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)
        self._open_ones.add(self)
        self._transport.write(self._request)
        self.sent_s = clock()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop puts what comes next."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the time first, then look at what came."""
        arrived_s = clock()
        if self._complete:
            return
        data = bytes(self._buffer[:nbytes])
        try:
            self._rest = self._decode(self._rest + data if self._rest else data, arrived_s)
        except BadAnswer as error:
            self.finish(str(error))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a body without a length; any other answer is cut short."""
        self._open_ones.discard(self)
        if self._decode == self._until_close and exc is None:
            self.finish()
        elif self.status:
            self.finish("truncated: the connection ended in the middle of the answer")
        else:
            self.finish(f"disconnected: {exc or 'closed without an answer'}")

    def finish(self, error: str | None = None) -> None:
        """Resolve ``ended``; only the first call counts."""
        if self.ended.done():
            return
        self.error = error
        self.ended.set_result(None)
        if self._transport is not None and not self._complete:
            self.ended.get_loop().call_later(LINGER_S, self._transport.close)

    @property
    def is_stream(self) -> bool:
        """Is the body a stream of events? Decided by what it is not: some servers name their streams oddly."""
        kind = self.headers.get("content-type", "")
        return self.status == 200 and not kind.startswith(("application/json", "text/html"))

    def abort(self) -> None:
        """Drop the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _head(self, data: bytes, arrived_s: float) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(data[:7]):
                raise BadAnswer(f"not_http: the answer begins with {data[:40]!r}")
            return data
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise BadAnswer(f"not_http: the answer begins with {first[:40]!r}")
        rest = data[end + 4 :]
        if parts[1].startswith("1"):  # 100 Continue and the like: the real answer follows
            return self._head(rest, arrived_s)
        self.status = int(parts[1])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._choose_body()
        return self._decode(rest, arrived_s)

    def _choose_body(self) -> None:
        length = self.headers.get("content-length", "")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._decode = self._chunked
        elif length.isdigit():
            self._left = int(length)
            self._decode = self._sized
        else:
            self._decode = self._until_close

    def _until_close(self, data: bytes, arrived_s: float) -> bytes:
        if data:
            self._on_body(data, arrived_s)
        return b""

    def _sized(self, data: bytes, arrived_s: float) -> bytes:
        piece = data[: self._left]
        self._left -= len(piece)
        if piece:
            self._on_body(piece, arrived_s)
        if self._left == 0:
            self._end()
        return b""

    def _chunked(self, data: bytes, arrived_s: float) -> bytes:
        """``<hex size>[;extension]\\r\\n<bytes>\\r\\n`` … ``0\\r\\n[trailers]\\r\\n``."""
        at = 0
        while not self._complete:
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                if len(data) - at > 1024:
                    raise BadAnswer("not_http: a chunk without a size")
                break
            try:
                size = int(data[at:line_end].partition(b";")[0], 16)
            except ValueError:
                raise BadAnswer(f"not_http: {data[at:line_end][:40]!r} is not the size of a chunk") from None
            start = line_end + 2
            if size == 0:
                self._end()
            elif len(data) < start + size + 2:
                break
            else:
                self._on_body(data[start : start + size], arrived_s)
                at = start + size + 2
        return data[at:]

    def _end(self) -> None:
        self._complete = True
        self.finish()
        if self._transport is not None:
            self._transport.close()
