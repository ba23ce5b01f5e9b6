"""The client against every way in which a server can answer."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import ssl
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_optimizer.errors import ServerUnusable, SpecInvalid
from model_optimizer.loadgen.client import Client, EventStream, Reply, Shot
from model_optimizer.loadgen.http import Address, BadAnswer, Exchange, clock, render_head
from tests.loadgen.conftest import mock_in_loop, serving
from tests.mock_engine import KEY, MockEngine, parse

BODY = {"model": "mock", "prompt": "some words here", "max_tokens": 5, "stream": True, "ignore_eos": True}
USAGE = {"stream_options": {"include_usage": True}}


async def shoot(client: Client, path: str = "/v1/completions", **more) -> Shot:
    shot = Shot(scheduled_s=clock(), target_prompt_tokens=3)
    await client.stream(path, BODY | USAGE | more, shot)
    return shot


def ask(*flags: object, api_key: str | None = None, timeout_s: float = 5.0, **more) -> Shot:
    async def main() -> Shot:
        async with mock_in_loop("--ttft-ms", 2, "--itl-ms", 1, *flags) as engine:
            address = Address.parse(f"http://127.0.0.1:{engine.port}")
            async with Client(address, api_key=api_key, timeout_s=timeout_s) as client:
                return await shoot(client, **more)

    return asyncio.run(main())


def answer(*pieces: bytes, linger: bool = False, scheme: str = "http") -> Shot:
    """What the client makes of a server that sends exactly these pieces, whatever it was asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(100)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)
            await asyncio.sleep(60 if linger else 0)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def main() -> Shot:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address.parse(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with serving(server), Client(address, timeout_s=5.0) as client:
            return await shoot(client)

    return asyncio.run(main())


def test_a_good_answer() -> None:
    shot = ask()
    assert shot.error is None
    assert (len(shot.chunk_s), shot.output_tokens, shot.prompt_tokens, shot.cached_tokens) == (5, 5, 4, 0)
    assert shot.finish_reason == "length"
    assert shot.scheduled_s <= shot.sent_s < shot.chunk_s[0] <= shot.chunk_s[-1] <= shot.end_s
    assert shot.trace().chunk_s == tuple(shot.chunk_s)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("http_500", "http_500: mock failure"),
        ("http_503", "http_503: mock failure"),
        ("drop", "disconnected: closed without an answer"),
        ("truncate", "truncated: "),
        ("cut_chunk", "truncated: "),
        ("garbage", "malformed: "),
        ("error_in_stream", "server_error: the engine core died"),
        ("empty", "empty: "),
        ("not_streaming", "not_streaming: application/json"),
        ("not_openai", "not_streaming: text/html"),
        ("chat_only", "http_404: no such path"),
        ("rejects_ignore_eos", "http_400: Unrecognized request argument"),
    ],
)
def test_each_fault_has_its_name(fault, kind) -> None:
    shot = ask("--fault", fault)
    assert (shot.error or "").startswith(kind)
    assert shot.end_s >= shot.sent_s > 0


def test_a_stalled_answer_times_out() -> None:
    shot = ask("--fault", "stall", timeout_s=0.3)
    assert shot.error == "timeout: no end after 0.3 s"
    assert len(shot.chunk_s) == 2


@pytest.mark.parametrize("fault", ["odd_sse", "no_done"])
def test_odd_but_valid_streams_are_read(fault) -> None:
    shot = ask("--fault", fault)
    assert shot.error is None
    assert (len(shot.chunk_s), shot.output_tokens) == (5, 5)


def test_without_usage_the_counts_are_unknown() -> None:
    shot = ask("--fault", "no_usage")
    assert (shot.error, shot.output_tokens, shot.prompt_tokens) == (None, None, None)


@pytest.mark.parametrize("fault", ["reasoning", "no_usage"])
def test_chat_counts_reasoning_and_skips_the_role(fault) -> None:
    shot = ask("--fault", fault, path="/v1/chat/completions", messages=[{"role": "user", "content": "hi"}])
    assert shot.error is None
    assert len(shot.chunk_s) == 5


def test_the_key_is_sent_and_never_told() -> None:
    assert ask("--fault", "needs_key", api_key=f" {KEY}\n").error is None
    refused = ask("--fault", "needs_key", api_key="sk-wrong-key")
    assert refused.error == "http_401: Incorrect API key provided: ***"


def test_nobody_there() -> None:
    async def main() -> tuple[Shot, Reply]:
        async with mock_in_loop() as engine:
            port = engine.port
        async with Client(Address.parse(f"http://127.0.0.1:{port}")) as client:
            return await shoot(client), await client.get("/v1/models")

    shot, reply = asyncio.run(main())
    assert (shot.error or "").startswith("connect: ")
    assert (reply.error or "").startswith("connect: ")


def test_https_on_a_plain_port_is_an_error_of_that_kind() -> None:
    shot = answer(b"HTTP/1.1 400 Bad Request\r\n\r\n", scheme="https")
    assert (shot.error or "").startswith("tls: ")


def test_https_with_a_certificate_the_machine_trusts(tmp_path, monkeypatch) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    flags = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *flags, *names], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def main() -> Shot:
        engine = MockEngine(parse(["--ttft-ms", "20", "--itl-ms", "5"]))
        server = await asyncio.start_server(engine.connection, "127.0.0.1", 0, ssl=context)
        address = Address.parse(f"https://localhost:{server.sockets[0].getsockname()[1]}")
        async with serving(server), Client(address) as client:
            return await shoot(client)

    assert (asyncio.run(main()).error or "").startswith("tls: ")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    shot = asyncio.run(main())
    assert shot.error is None
    assert (len(shot.chunk_s), shot.output_tokens) == (5, 5)
    assert shot.chunk_s[0] - shot.sent_s >= 0.020


def test_an_unknown_host_is_told_at_once() -> None:
    async def main() -> None:
        async with Client(Address.parse("http://no-such-host.invalid:1")):
            raise AssertionError("must not be entered")

    with pytest.raises(ServerUnusable, match=r"no-such-host\.invalid is unknown"):
        asyncio.run(main())


EVENT = b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], "not_http"),
        ([b"HTTP/1.1 abc\r\n\r\n"], "not_http"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"], "not_http"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", EVENT], "truncated"),
        ([b"HTTP/1.1 200 OK\r\n\r\n"], "truncated"),
        ([b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"], "http_302"),
        ([b"HTTP/1.1 200 OK\r\n\r\ndata: [1]\n\n"], "malformed"),
        ([b"HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[7]}\n\n"], "malformed"),
        ([b"HTTP/1.1 200 OK\r\n\r\ndata: {\"usage\":{\"prompt_tokens\":\"many\"}}\n\n"], "malformed"),
        ([b"HTTP/1.1 200 OK\r\n\r\nerror: {\"message\":\"slot broke\"}\n\n"], "server_error: slot broke"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", EVENT[:-1]], None),
        ([b"HTTP/1.1 200 OK\r\n\r\n", EVENT, b"data: [DONE]"], None),
        ([b"HTTP/1.1 100 Continue\r\n\r\nHTT", b"P/1.1 200 OK\r\n\r\n", EVENT], None),
        ([b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n" % len(EVENT), EVENT[:9], EVENT[9:]], None),
    ],
)  # fmt: skip
def test_raw_answers(pieces, error) -> None:
    shot = answer(*pieces)
    if error is None:
        assert shot.error is None
        assert len(shot.chunk_s) == 1
    else:
        assert (shot.error or "").startswith(error)


def test_the_end_is_taken_from_done_where_the_server_keeps_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = EVENT + b"data: [DONE]\n\n"
    shot = answer(head + b"%x\r\n%s\r\n" % (len(event), event), linger=True)
    assert shot.error is None
    assert shot.end_s - shot.sent_s < 1.0


def test_cancelling_drops_the_connection() -> None:
    async def main() -> int:
        async with mock_in_loop("--ttft-ms", 2, "--itl-ms", 5) as engine:
            address = Address.parse(f"127.0.0.1:{engine.port}")
            async with Client(address) as client:
                task = asyncio.create_task(shoot(client, max_tokens=10_000))
                await asyncio.sleep(0.1)
                assert engine.running == 1
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await asyncio.sleep(0.1)
                return engine.running

    assert asyncio.run(main()) == 0


PLAIN, ODD = b'data:{"n": %d}\n\n', b': ping\r\nevent: message\r\ndata: {"n": %d}\r\n\r\n'
STREAM = b"".join((ODD if n % 2 else PLAIN) % n for n in range(6))


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_how_the_stream_was_cut(cuts) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    events = EventStream()
    found = [payload for a, b in itertools.pairwise(edges) for payload in events.feed(STREAM[a:b])]
    assert found == [b'{"n": %d}' % n for n in range(6)]
    assert events.close() == []


def test_an_event_of_several_data_lines_is_one() -> None:
    assert EventStream().feed(b'data: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']


@given(st.lists(st.integers(0, 200), max_size=12))
def test_chunked_bodies_do_not_depend_on_how_they_were_cut(cuts) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = head + b"5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\nTrailer: z\r\n\r\n"
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    got = bytearray()

    async def main() -> str | None:
        buffer = memoryview(bytearray(1000))
        exchange = Exchange(b"", lambda piece, _: got.extend(piece), open_ones=set(), buffer=buffer)
        for a, b in itertools.pairwise(edges):
            exchange.get_buffer(-1)[: b - a] = body[a:b]
            exchange.buffer_updated(b - a)
        assert exchange.ended.done()
        return exchange.error

    assert asyncio.run(main()) is None
    assert got == b"hello, world"


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("http://localhost:8000/v1/", "localhost", 8000, ""),
        ("localhost:8000", "localhost", 8000, ""),
        ("https://api.example.com/openai/v1", "api.example.com", 443, "/openai"),
        ("http://[::1]:9", "::1", 9, ""),
    ],
)
def test_addresses(url, host, port, prefix) -> None:
    address = Address.parse(url)
    assert (address.host, address.port, address.prefix) == (host, port, prefix)
    assert (address.tls is not None) == url.startswith("https")


@pytest.mark.parametrize("url", ["", "http://", "ftp://x", "http://x:99999", "http://x:abc"])
def test_what_is_not_an_address(url) -> None:
    with pytest.raises(SpecInvalid, match="is not the address of a server"):
        Address.parse(url)


def test_headers_cannot_smuggle_lines() -> None:
    with pytest.raises(SpecInvalid) as caught:
        render_head(Address.parse("x:1"), "GET", "/", {"Authorization": "Bearer a\r\nX: secret"})
    assert "secret" not in str(caught.value.as_dict())


def test_bad_answers_read_like_errors() -> None:
    with pytest.raises(BadAnswer, match="malformed: "):
        Shot(scheduled_s=0.0, target_prompt_tokens=1).take(b"{", 1.0)
