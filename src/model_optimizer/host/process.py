"""The only place that starts programs. Each runs on a leash: in a group of its own, and never outliving us.

Output goes to a log (values that look like secrets are struck out), the last lines are kept, memory is measured on
the way.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import psutil

from model_optimizer.errors import HostError, NotWritable, TimedOut, ToolBroken
from model_optimizer.host.meter import Meter
from model_optimizer.units import format_seconds

TAIL_LINES = 200
_LEASH = Path(__file__).with_name("leash.py")
_LONGEST_LINE = 1 << 16
_SHORT_S = 1.0
_START_TIMEOUT_S = 60.0
_KILL_TIMEOUT_S = 10.0
_LAST_OUTPUT_TIMEOUT_S = 2.0
"""Output ends when nobody holds the pipe. Only a program that outlived a killed leash can hold it longer than this."""
# Ours would be imported by the tool, or change how it starts; a tool's environment must depend on itself alone.
_OURS = frozenset(
    ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
)
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASS|KEY|APIKEY|CREDENTIALS?|AUTH|AUTHORIZATION)(_|$)", re.IGNORECASE
)
_SHORTEST_SECRET = 8
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")


class Completed(NamedTuple):
    """A program that has ended. ``returncode`` is negative where a signal ended it; ``tail`` holds its last lines."""

    returncode: int
    seconds: float
    peak_memory_bytes: int
    tail: tuple[str, ...]
    cpu_seconds: float = 0.0


def child_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without what belongs to our own Python, plus ``extra``."""
    env = {name: value for name, value in os.environ.items() if name not in _OURS}
    env |= {"PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    return env | dict(extra or {})


class Redactor:
    """Strikes secrets out of text: values of variables named like one, and logins inside URLs."""

    def __init__(self, env: Mapping[str, str]) -> None:
        secrets = {v for k, v in env.items() if _SECRET_NAME.search(k) and len(v) >= _SHORTEST_SECRET}
        self._secrets = sorted(secrets, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text with ``***`` in the place of every secret."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _URL_LOGIN.sub("***", text) if "@" in text else text


class Child:
    """A running program. Use it as a context manager: leaving the block ends the program and all that it started."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        log: Path | None,
        lines: queue.SimpleQueue[str | None] | None = None,
    ) -> None:
        full_env = child_env(env)
        self._redact = Redactor(os.environ | full_env)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._lines = lines
        self._lock = threading.Lock()
        self._reported: tuple[float, int] | None = None
        self._short = False
        self.returncode: int | None = None
        self.pid = 0
        self.started = time.monotonic()
        self._log = _open_log(log)
        if self._log is not None:
            self._log.write(f"$ {self._redact(shlex.join(argv))}\n".encode())
        self._cord, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_LEASH), str(theirs.fileno()), *argv],
                env=full_env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal reaches us alone; we decide how the program ends
            )
        except OSError as error:
            self._cord.close()
            if self._log is not None:
                self._log.close()
            raise _cannot_start(argv[0], str(error)) from error
        finally:
            theirs.close()
        self._reader = threading.Thread(target=self._read, name=f"output-{self._process.pid}", daemon=True)
        self._reader.start()
        self._meter = Meter(self._process.pid)
        self.pid = self._started_pid(argv[0])

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.terminate()

    def poll(self) -> int | None:
        """The return code, or ``None`` while it runs."""
        if self.returncode is None and self._process.poll() is not None:
            self._finish()
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end; ``None`` where it still runs after ``timeout_s``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.poll()

    def terminate(self, grace_s: float = 10.0) -> int | None:
        """End it: SIGTERM to its group, after ``grace_s`` SIGKILL to everything it started. Harmless once ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()  # the leash hands it on
            if self.wait(grace_s) is None:
                self.kill()
        return self.returncode

    def kill(self) -> None:
        """SIGKILL to everything it started, at once."""
        with contextlib.suppress(OSError):
            self._cord.shutdown(socket.SHUT_WR)  # what the leash also sees when we die
        if self.wait(_KILL_TIMEOUT_S) is None:
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(self._process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            self._process.kill()
            self.wait(_KILL_TIMEOUT_S)

    def memory_bytes(self) -> int:
        """PSS of the process tree now."""
        return self._meter.memory_bytes() if self.returncode is None else 0

    @property
    def peak_memory_bytes(self) -> int:
        """The largest PSS of the process tree seen so far, in bytes.

        Of a program that ended within a second, sampling may have missed it: there the largest resident set of any of
        its processes counts too.
        """
        sampled = self._meter.peak_memory_bytes
        return max(sampled, self._reported[1]) if self._reported and self._short else sampled

    def cpu_seconds(self) -> float:
        """User and system time of the process tree, ended processes included."""
        return self._reported[0] if self._reported else self._meter.cpu_seconds()

    def tail(self, n: int = TAIL_LINES) -> tuple[str, ...]:
        """The last ``n`` lines of its output, secrets struck out."""
        return tuple(self._tail)[-n:]

    def _started_pid(self, program: str) -> int:
        """What the leash says first. Raises ``ToolBroken`` where the program could not be executed."""
        try:
            self._cord.settimeout(_START_TIMEOUT_S)
            said = _receive_line(self._cord).split(maxsplit=1)
        except BaseException:
            self.kill()
            raise
        if len(said) == 2 and said[0] == "started":
            return int(said[1])
        self._process.wait()
        self._finish()
        raise _cannot_start(program, said[1] if len(said) == 2 else "; ".join(self.tail(3)) or "it ended at once")

    def _read(self) -> None:
        """Reader thread: output to log, tail and queue until every holder of the pipe is gone; then it closes both."""
        with self._process.stdout or contextlib.nullcontext() as output, self._log or contextlib.nullcontext() as log:
            while output is not None and (raw := output.readline(_LONGEST_LINE)):
                line = self._redact(raw.decode(errors="replace"))
                if log is not None:
                    with contextlib.suppress(OSError):  # a full disk must not stall the program behind a full pipe
                        log.write(line.encode())
                shown = line.rstrip("\r\n").rpartition("\r")[
                    2
                ]  # of a progress bar that overwrites itself, the last state
                self._tail.append(shown)
                if self._lines is not None:
                    self._lines.put(shown)
        if self._lines is not None:
            self._lines.put(None)

    def _finish(self) -> None:
        """After the leash has ended: collect what it said, stop the threads, close everything. Once."""
        with self._lock:
            if self.returncode is not None:
                return
            self._meter.stop()
            self._short = time.monotonic() - self.started < _SHORT_S
            self._reported = _used(self._cord)
            if self._reported is None and self.pid:
                # The leash was killed before its work was done: the program died with it, its children may not have.
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._cord.close()
            self._reader.join(_LAST_OUTPUT_TIMEOUT_S)
            self.returncode = self._process.returncode


def spawn(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, log: Path | None = None
) -> Child:
    """Start a program and return while it runs. ``env`` is added to ours without what belongs to our own Python.

    Raises ``ToolBroken`` (it cannot be executed), ``NotWritable`` (the log).
    """
    return Child(argv, env=env, cwd=cwd, log=log)


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    timeout_s: float,
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run a program to its end. ``on_line`` is called in this thread for each line of output.

    A return code is the caller's to judge. Raises ``TimedOut`` after ``timeout_s``, ``ToolBroken``, ``NotWritable``.
    Whatever is raised, Ctrl-C included, the program and all that it started are gone then.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    with Child(argv, env=env, cwd=cwd, log=log, lines=lines) as child:
        deadline = child.started + timeout_s
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise _timed_out(argv, timeout_s, child, log) from None
            if line is None:
                break
            if on_line is not None:
                on_line(line)
        if child.wait(max(0.0, deadline - time.monotonic())) is None:
            raise _timed_out(argv, timeout_s, child, log)
        seconds = time.monotonic() - child.started
        return Completed(
            child.returncode or 0, seconds, child.peak_memory_bytes, child.tail(), cpu_seconds=child.cpu_seconds()
        )


def _timed_out(argv: Sequence[str], timeout_s: float, child: Child, log: Path | None) -> TimedOut:
    name = Path(argv[0]).name
    return TimedOut(
        f"{name} was still running after {format_seconds(timeout_s)}, and was stopped",
        cause="it takes longer than it was given, or it hangs; its last lines may tell",
        fix="run again when the machine is less busy; the steps that were finished are remembered",
        evidence=child.tail(5),
        log=str(log) if log else None,
    )


def _cannot_start(program: str, cause: str) -> HostError:
    return ToolBroken(
        f"{program} cannot be started",
        cause=cause.partition(" ")[2] if cause[:1].isdigit() else cause,
        fix="check that the file exists and may be executed; "
        "an environment that we built is repaired by: model-optimize tools remove NAME, then tools install NAME",
    )


def _open_log(log: Path | None) -> BinaryIO | None:
    if log is None:
        return None
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab", buffering=0)
    except OSError as error:
        raise NotWritable(
            f"the log {log} cannot be written",
            cause=error.strerror or str(error),
            fix="check the permissions of that folder, or choose another with MODEL_OPTIMIZER_HOME",
        ) from error


def _receive_line(cord: socket.socket) -> str:
    """One line from the leash; empty where it died without a word."""
    received = b""
    while not received.endswith(b"\n") and (byte := cord.recv(1)):
        received += byte
    return received.decode().strip()


def _used(cord: socket.socket) -> tuple[float, int] | None:
    """CPU seconds and largest resident set in bytes, as the leash reported them at its end."""
    with contextlib.suppress(OSError, ValueError):
        word, cpu_seconds, maxrss_bytes = _receive_line(cord).split()
        if word == "used":
            return float(cpu_seconds), int(maxrss_bytes)
    return None
