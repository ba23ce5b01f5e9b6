"""Watching servers, and what is no server, no page, or too much of one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from model_optimizer import api
from model_optimizer.errors import ServerUnusable, SpecInvalid
from model_optimizer.loadgen.scrape import Seen, watch

PATHS = ("/metrics", "/prometheus/metrics")
PAGE = (
    'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\nvllm:generation_tokens_total 5\n'
)
MODELS = json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]})
Answer = tuple[int, str, bytes]
Rule = Callable[[str, int], Answer | None]


class Served(NamedTuple):
    """A small HTTP server: ``rule(path, how often asked before)`` answers, ``None`` is 404."""

    url: str
    asked: list[tuple[str, str | None]]


@pytest.fixture
def serve() -> Iterator[Callable[[Rule], Served]]:
    servers: list[ThreadingHTTPServer] = []

    def start(rule: Rule) -> Served:
        asked: list[tuple[str, str | None]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                before = sum(path == self.path for path, _ in asked)
                asked.append((self.path, self.headers.get("Authorization")))
                status, kind, body = rule(self.path, before) or (404, "application/json", b'{"error": "not found"}')
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return Served(f"http://127.0.0.1:{server.server_port}", asked)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def text(body: str, kind: str = "text/plain; version=0.0.4") -> Answer:
    return 200, kind, body.encode()


def ok(path: str, before: int) -> Answer | None:
    return {
        "/metrics": text(PAGE), "/v1/models": text(MODELS, "application/json"),
        "/version": text('{"version": "0.33.0"}', "application/json"),
    }.get(path)  # fmt: skip


def silent(kind: str, **fields: object) -> None:
    pass


def test_looks_once_a_second_and_learns_who_it_is(serve):
    served = serve(ok)
    seen = iter(range(100))
    watched = watch(served.url, PATHS, seconds=2, emit=silent, see=lambda: Seen({7: float(next(seen))}, 0.5))
    assert 3 <= len(watched.scrapes) <= 4
    gaps = [b.at_s - a.at_s for a, b in zip(watched.scrapes, watched.scrapes[1:], strict=False)]
    assert all(0.5 < gap < 1.6 for gap in gaps[:-1])
    assert watched.scrapes[0].page == PAGE
    assert [s.process_cpu_s[7] for s in watched.scrapes] == [float(n) for n in range(len(watched.scrapes))]
    who = watched.identity
    assert (who.engine, who.version, who.model, who.page_path) == ("vllm", "0.33.0", "m", "/metrics")


def test_finds_the_page_where_tensorrt_llm_has_it_and_slots_where_llama_cpp_has_them(serve):
    def rule(path: str, before: int) -> Answer | None:
        if path == "/metrics":
            return text('[{"gpuMemUsage": 1}]', "application/json")  # TensorRT-LLM's own statistics
        if path == "/props":
            return text('{"total_slots": 4, "build_info": "b9000"}', "application/json")
        return text(PAGE) if path == "/prometheus/metrics" else None

    who = watch(serve(rule).url + "/v1", PATHS, seconds=1, emit=silent).identity
    assert (who.page_path, who.slots, who.engine, who.version) == ("/prometheus/metrics", 4, "llama.cpp", "b9000")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "GET /metrics: HTTP 404"),
        ((501, "application/json", b'{"error": "start with --metrics"}'), "HTTP 501"),
        (text("<!DOCTYPE html><html>Hello</html>", "text/html"), "text/html instead of a Prometheus page"),
        (text("<html>Hello</html>", "text/plain"), "instead of a Prometheus page"),
        (text("x" * (17 << 20)), "longer than 16 MiB"),
    ],
)
def test_what_is_no_metrics_page_is_one_scrape_with_the_reason(serve, answer, told):
    served = serve(lambda path, before: answer if path == "/metrics" else ok(path, before) if path != "/x" else None)
    (scrape,) = watch(served.url, PATHS, seconds=2, emit=silent).scrapes
    assert scrape.page == ""
    assert told in str(scrape.error)
    found = api.diagnose_server(served.url, show=silent, seconds=2)
    assert (found.regime, found.engine, found.model) == ("unknown", "vllm", "m")
    assert told in found.ask_for[0]
    assert "vLLM" in found.ask_for[1]


def test_an_empty_page_is_unknown(serve):
    served = serve(lambda path, before: text("# nothing yet\n") if path == "/metrics" else ok(path, before))
    found = api.diagnose_server(served.url, show=silent, seconds=1)
    assert found.regime == "unknown"
    assert "no Prometheus page" in found.ask_for[0]


def test_nothing_listens_or_it_is_no_http(serve):
    with pytest.raises(ServerUnusable, match="no server answers"):
        watch("http://127.0.0.1:9", PATHS, seconds=1, emit=silent)
    with pytest.raises(SpecInvalid):
        watch("ftp://x", PATHS, seconds=1, emit=silent)
    with pytest.raises(ServerUnusable, match="unknown"):
        watch("http://no-such-host.invalid", PATHS, seconds=1, emit=silent)

    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    started, stop = threading.Event(), threading.Event()
    port = 0

    def run() -> None:
        async def main() -> None:
            nonlocal port
            server = await asyncio.start_server(chatter, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            started.set()
            async with server:
                while not stop.is_set():
                    await asyncio.sleep(0.02)

        asyncio.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(5)
    try:
        with pytest.raises(ServerUnusable, match="no server answers"):
            watch(f"http://127.0.0.1:{port}", PATHS, seconds=1, emit=silent)
    finally:
        stop.set()
        thread.join()


def test_a_key_is_sent_and_its_absence_is_told(serve):
    locked = serve(lambda path, before: (401, "text/plain", b"no") if path == "/metrics" else ok(path, before))
    with pytest.raises(ServerUnusable, match="not open to us") as told:
        watch(locked.url, PATHS, seconds=1, emit=silent)
    assert "--api-key-env" in told.value.fix
    opened = serve(ok)
    watch(opened.url, PATHS, seconds=1, emit=silent, api_key="sk-secret-1")
    assert {key for _, key in opened.asked} == {"Bearer sk-secret-1"}


def test_looks_that_fail_in_between_are_counted_and_the_rest_is_used(serve):
    def rule(path: str, before: int) -> Answer | None:
        if path == "/metrics" and before == 2:
            return 503, "text/plain", b"busy"
        return ok(path, before)

    served = serve(rule)
    found = api.diagnose_server(served.url, show=silent, seconds=3)
    assert found.regime == "idle"
    assert found.window is not None and found.window.num_failed_looks == 1
    assert any("brought no page (GET /metrics: HTTP 503)" in note for note in found.notes)


def test_a_server_that_begins_anew_is_told(serve):
    def rule(path: str, before: int) -> Answer | None:
        tokens = 900 + before if before < 3 else before
        page = PAGE.replace('running{engine="0"} 0', 'running{engine="0"} 2').replace("_total 5", f"_total {tokens}")
        return text(page) if path == "/metrics" else ok(path, before)

    found = api.diagnose_server(serve(rule).url, show=silent, seconds=4)
    assert found.regime == "erroring"
    assert "started anew" in found.notes[0]


def test_a_page_that_never_ends_does_not_hold_us(serve):
    began = time.monotonic()
    served = serve(
        lambda path, before: (200, "text/plain", b"x 1\n" * (6 << 20)) if path == "/metrics" else ok(path, before)
    )
    (scrape,) = watch(served.url, ("/metrics",), seconds=1, emit=silent).scrapes
    assert "16 MiB" in str(scrape.error)
    assert time.monotonic() - began < 20
