"""Engines' servers: ready means that a completion was answered; whatever happens, they are stopped."""

import contextlib
import http.server
import threading
import time
import urllib.request

import psutil
import pytest

from model_optimizer.errors import MemoryShort, ServerFailed, ServerUnusable
from model_optimizer.host.server import free_port, serve
from model_optimizer.records.tooling import Launch

# Not an engine's stand-in for measuring: only as much of a server as starting, watching and stopping can see.
SERVER = """
import http.server, json, os, subprocess, sys, time
port, mode = int(sys.argv[1]), sys.argv[2]
print("loading the model", flush=True)
if mode == "dies-loading":
    time.sleep(0.3)
    raise ValueError("the weights have 3 dimensions")
if mode == "hangs":
    print("still compiling", flush=True)
    time.sleep(600)
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
born = time.time()

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=b"{}"):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/metrics":
            return self.answer(200, b"engine_requests_running 1\\n")
        if self.path == "/die":
            print("GGML_ASSERT(n_tokens > 0) failed", flush=True)
            os._exit(3)
        if self.path == "/eat":
            os.kill(os.getpid(), 9)
        self.answer(200 if time.time() - born > 0.5 else 503)
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("asked", asked["model"], asked["max_tokens"], flush=True)
        if mode == "refuses":
            return self.answer(404, b'{"error": "no such model"}')
        if mode == "warms-up" and time.time() - born < 1:
            return self.answer(503)
        self.answer(200)

try:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
except OSError as error:
    sys.exit(f"error: {error}")
print("pids", os.getpid(), helper.pid, flush=True)
server.serve_forever()
"""


@pytest.fixture
def start(tmp_path, python_env, events):
    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def go(mode: str = "works", *, port: int = 0, relaunch: bool = False, **fields):
        def launch(port: int) -> Launch:
            return Launch(tool="python", worker=str(script), args=(str(port), mode), served_model="tiny", **fields)

        port = port or free_port()
        again = launch if relaunch else None
        return serve(launch(port), python_env, port=port, log=tmp_path / "log", emit=events, relaunch=again)

    return go


def get(url: str) -> None:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        answer.read()


def pids(log) -> list[int]:
    line = next(line for line in log.read_text().splitlines() if line.startswith("pids"))
    return [int(word) for word in line.split()[1:]]


def test_ready_serves_and_leaves_nothing(start, tmp_path, events):
    with start() as server:
        assert server.version == "1.2.3"
        assert server.pid == pids(tmp_path / "log")[0]
        assert server.ready_s >= 0.5
        assert server.metrics_text() == "engine_requests_running 1\n"
        server.check()
        stats = server.stats()
        assert stats.peak_memory_bytes >= stats.loaded_memory_bytes > 10 << 20
        assert stats.cpu_seconds > 0
        alive = pids(tmp_path / "log")
        assert all(psutil.pid_exists(pid) for pid in alive)
    assert not any(psutil.pid_exists(pid) for pid in alive)
    assert "asked tiny 1" in (tmp_path / "log").read_text()


def test_an_error_in_the_block_stops_it_too(start, tmp_path):
    with pytest.raises(ZeroDivisionError), start():
        raise ZeroDivisionError
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path / "log"))


def test_waits_for_an_engine_that_warms_up(start):
    with start("warms-up") as server:
        assert server.ready_s >= 1


def test_dies_while_loading(start, tmp_path):
    with pytest.raises(ServerFailed) as caught, start("dies-loading"):
        pass
    assert caught.value.what == "python ended before it was ready (exit status 1)"
    assert caught.value.cause == "ValueError: the weights have 3 dimensions"
    assert caught.value.log == str(tmp_path / "log")
    assert caught.value.evidence


def test_not_ready_in_time_names_the_last_line(start):
    started = time.monotonic()
    with pytest.raises(ServerFailed) as caught, start("hangs", ready_timeout_s=1.5):
        pass
    assert "not ready in 1.5 s" in caught.value.what
    assert caught.value.cause == "its last line: still compiling"
    assert time.monotonic() - started < 15


def test_dies_while_serving(start):
    with start() as server:
        get(server.url + "/die")
        with pytest.raises(ServerFailed) as caught:
            wait_for_death(server)
    assert caught.value.what == "python died while serving (exit status 3)"
    assert "GGML_ASSERT" in caught.value.cause


def test_killed_for_memory_while_serving(start):
    with start() as server:
        get(server.url + "/eat")
        with pytest.raises(ServerFailed) as caught:
            wait_for_death(server)
    assert "SIGKILL" in caught.value.what
    assert caught.value.cause.startswith("it ran out of memory; its processes held")


def test_metrics_of_a_dead_server(start):
    with start() as server:
        get(server.url + "/die")
        with pytest.raises(ServerFailed):
            for _ in range(100):
                server.metrics_text()
                time.sleep(0.05)


def test_refuses_the_completion(start):
    with pytest.raises(ServerUnusable) as caught, start("refuses"):
        pass
    assert caught.value.cause == 'HTTP 404: {"error": "no such model"}'


def test_no_metrics_page(start):
    with start(metrics_path=None) as server:
        assert server.metrics_text() == ""


@contextlib.contextmanager
def foreign_server():
    """Another program's server, which answers 200 to everything: believing it would be the worst mistake."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_port_in_use_is_never_believed(start):
    with foreign_server() as port, pytest.raises(ServerFailed) as caught, start(port=port):
        pass
    assert f"cannot listen on port {port}" in caught.value.what


def test_a_port_in_use_is_changed_once(start, events):
    with foreign_server() as port, start(port=port, relaunch=True) as server:
        assert not server.url.endswith(f":{port}")
        server.check()
    assert "was taken" in str(events.of("note")[0]["text"])


def test_too_little_memory_is_said_before_starting(start, tmp_path):
    with pytest.raises(MemoryShort) as caught, start(startup_memory_bytes=1 << 50):
        pass
    assert "1024 TiB" in caught.value.cause
    assert caught.value.evidence
    assert not (tmp_path / "log").exists()


def wait_for_death(server) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        server.check()
        time.sleep(0.05)


def test_free_ports_are_free():
    assert len({free_port() for _ in range(5)}) > 1
