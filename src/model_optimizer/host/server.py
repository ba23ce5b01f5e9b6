"""Runs an engine's server: started, known to answer, watched, and stopped with everything that it started."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import psutil

from model_optimizer.errors import MemoryShort, ServerFailed, ServerUnusable, StageFailure
from model_optimizer.host.causes import (
    count_oom_kills,
    describe_status,
    first_cause,
    last_lines,
    ran_out_of_memory,
)
from model_optimizer.host.jobs import worker_path
from model_optimizer.host.probe import available_memory_bytes
from model_optimizer.host.process import Child, spawn
from model_optimizer.host.toolenv import ToolEnv
from model_optimizer.records.base import Emit
from model_optimizer.records.measurement import ServerStats
from model_optimizer.records.tooling import Launch
from model_optimizer.units import format_bytes, format_seconds

_HOST = "127.0.0.1"
_POLL_S = 0.1
_REQUEST_TIMEOUT_S = 10.0
_STOP_GRACE_S = 15.0
_PORT_TAKEN = ("address already in use", "already in use", "couldn't bind", "could not bind", "errno 98")


class RunningServer:
    """A server that has answered a request. ``url`` is its base, without a path."""

    def __init__(self, launch: Launch, env: ToolEnv, child: Child, port: int, log: Path, *, log_start: int) -> None:
        self.launch = launch
        self.url = f"http://{_HOST}:{port}"
        self.version = env.version
        self.ready_s = 0.0
        self.loaded_memory_bytes = 0
        self._child = child
        self._port = port
        self._log = log
        self._log_start = log_start
        self._oom_kills = count_oom_kills()

    @property
    def pid(self) -> int:
        """The server's main process."""
        return self._child.pid

    def stats(self) -> ServerStats:
        """What serving has cost so far."""
        return ServerStats(
            ready_s=self.ready_s,
            peak_memory_bytes=self._child.peak_memory_bytes,
            loaded_memory_bytes=self.loaded_memory_bytes,
            cpu_seconds=self._child.cpu_seconds(),
        )

    def check(self) -> None:
        """Raises ``ServerFailed`` where the server has died since it was ready."""
        if self._child.poll() is not None:
            raise self._death("died while serving")

    def metrics_text(self) -> str:
        """Its Prometheus page; empty where it has none. Raises ``ServerFailed`` where it has died."""
        if self.launch.metrics_path is None:
            return ""
        try:
            status, body = self._request("GET", self.launch.metrics_path)
        except (OSError, http.client.HTTPException):
            self.check()
            return ""
        return body.decode(errors="replace") if status == 200 else ""

    def wait_until_ready(self, emit: Emit) -> None:
        """Health answers 200, then a completion of one token is answered.

        Raises ``ServerFailed`` (died, or not ready in time), ``ServerUnusable`` (refuses the completion).
        """
        self._wait_for_health(emit)
        self._first_completion()
        self.ready_s = time.monotonic() - self._child.started
        self.loaded_memory_bytes = self._child.memory_bytes()

    def _wait_for_health(self, emit: Emit) -> None:
        said = 0.0
        while True:
            waited = self._require_alive_in_time()
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, _ = self._request("GET", self.launch.health_path)
                if status == 200:
                    return
            if waited - said >= 1:
                said = waited
                limit = self.launch.ready_timeout_s
                emit("progress", what=f"start {self.launch.tool}", done=round(waited), total=round(limit), unit="s")
            time.sleep(_POLL_S)

    def _first_completion(self) -> None:
        """One token through the whole engine: some report health before the model can answer."""
        body = orjson.dumps({"model": self.launch.served_model, "prompt": "1 2 3", "max_tokens": 1, "temperature": 0})
        while True:
            waited = self._require_alive_in_time()
            left = max(1.0, self.launch.ready_timeout_s - waited)
            try:
                status, answer = self._request("POST", "/v1/completions", body, timeout_s=left)
            except (OSError, http.client.HTTPException):
                time.sleep(_POLL_S)
                continue
            if status == 200:
                return
            if status not in (429, 500, 502, 503):  # those may pass while it warms up
                raise ServerUnusable(
                    f"{self.launch.tool} answers, but refuses a completion of one token",
                    cause=f"HTTP {status}: {answer[:300].decode(errors='replace')}",
                    fix="read its log; the served model's name or the engine's version may not fit",
                    log=str(self._log),
                )
            time.sleep(_POLL_S)

    def _require_alive_in_time(self) -> float:
        """Seconds since the start. Raises ``ServerFailed``."""
        if self._child.poll() is not None:
            raise self._death("ended before it was ready")
        waited = time.monotonic() - self._child.started
        if waited > self.launch.ready_timeout_s:
            last = next((line.strip() for line in reversed(self._child.tail()) if line.strip()), "nothing was printed")
            raise ServerFailed(
                f"{self.launch.tool} was not ready in {format_seconds(self.launch.ready_timeout_s)}",
                cause=f"its last line: {last[:300]}",
                fix="run again when the machine is less busy, or take a smaller model or max_model_len",
                evidence=self._child.tail(8),
                log=str(self._log),
            )
        return waited

    def _death(self, what: str) -> ServerFailed:
        returncode = self._child.returncode or 0
        lines = last_lines(self._log, self._log_start)[1:]  # not the command line, which we wrote there ourselves
        memory = ran_out_of_memory(returncode, lines[-50:], count_oom_kills() - self._oom_kills)
        peak = format_bytes(self._child.peak_memory_bytes)
        return ServerFailed(
            f"{self.launch.tool} {what} ({describe_status(returncode)})",
            cause=(f"it ran out of memory; its processes held {peak} at their peak. " if memory else "")
            + (first_cause(lines) or "it printed nothing"),
            fix="take a shorter max_model_len, fewer parallel sequences or a smaller model, or close other programs"
            if memory
            else f"read the log; if the environment itself is at fault: model-optimize tools verify {self.launch.tool}",
            evidence=[line for line in lines if line.strip()][-12:],
            log=str(self._log),
        )

    def _request(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float = _REQUEST_TIMEOUT_S
    ) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection(_HOST, self._port, timeout=timeout_s)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            return response.status, response.read()


@contextlib.contextmanager
def serve(
    launch: Launch,
    env: ToolEnv,
    *,
    port: int,
    log: Path,
    emit: Emit,
    relaunch: Callable[[int], Launch] | None = None,
) -> Iterator[RunningServer]:
    """A server that is ready, for the time of the block; it is stopped however the block is left.

    ``port`` must be the one in ``launch``. Where another program has taken it meanwhile, ``relaunch`` (the same launch
    for another port) is tried once. Raises ``MemoryShort``, ``ServerFailed``, ``ServerUnusable``, ``ToolBroken``.
    """
    with contextlib.ExitStack() as stack:
        try:
            server = _start(stack, launch, env, port, log, emit)
        except StageFailure as failure:
            if relaunch is None or not _is_port_taken(failure):
                raise
            stack.close()
            other = free_port()
            emit("note", text=f"port {port} was taken by another program; trying {other}")
            server = _start(stack, relaunch(other), env, other, log, emit)
        yield server


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _start(
    stack: contextlib.ExitStack, launch: Launch, env: ToolEnv, port: int, log: Path, emit: Emit
) -> RunningServer:
    _require_memory(launch)
    _require_free(launch.tool, port)
    what = [str(worker_path(launch.worker))] if launch.worker else ["-m", launch.module or ""]
    log_start = log.stat().st_size if log.exists() else 0
    child = spawn([str(env.python), *what, *launch.args], env=launch.env, log=log)
    stack.callback(child.terminate, _STOP_GRACE_S)
    server = RunningServer(launch, env, child, port, log, log_start=log_start)
    server.wait_until_ready(emit)
    return server


def _require_memory(launch: Launch) -> None:
    available = available_memory_bytes()
    if launch.startup_memory_bytes > available:
        largest = sorted(psutil.process_iter(["name", "memory_info"]), key=_resident, reverse=True)[:3]
        raise MemoryShort(
            f"not enough free memory to start {launch.tool}",
            cause=f"it needs about {format_bytes(launch.startup_memory_bytes)}; "
            f"{format_bytes(available)} are available",
            fix="close other programs, or take a smaller model, scheme or max_model_len",
            evidence=[f"{p.info['name']} (process {p.pid}) holds {format_bytes(_resident(p))}" for p in largest],
        )


def _resident(process: psutil.Process) -> int:
    memory = process.info.get("memory_info")
    return int(memory.rss) if memory else 0


def _require_free(tool: str, port: int) -> None:
    """Else our health check would ask the other program, and believe it."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
    except OSError as error:
        raise ServerFailed(
            f"{tool} cannot listen on port {port}",
            cause=f"address already in use: another program has the port ({error.strerror})",
            fix="stop that program, or run again: a free port is chosen each time",
        ) from error


def _is_port_taken(failure: StageFailure) -> bool:
    text = "\n".join([failure.cause, *failure.evidence]).lower()
    return any(sign in text for sign in _PORT_TAKEN)
