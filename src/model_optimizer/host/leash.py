"""Stands between Model-Optimizer and every program it starts, so that nothing outlives it, however it ends.

Run as ``python -I -S leash.py CORD PROGRAM [ARGUMENT ...]``; imports the standard library only. ``CORD`` is the number
of an open socket to Model-Optimizer. The kernel closes the other end when that process dies, SIGKILL included, and then
everything that the program has started is killed, also what moved to a session of its own. Said over the cord:
``started PID`` or ``failed ERRNO TEXT``, and at the end ``used CPU_SECONDS MAXRSS_BYTES``. Ends with the program's own
status or signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ORPHANED_GRACE_S = 0.3
"""After our parent died: time for the program to remove its shared memory. Nobody waits for it any more."""
_LEFTOVER_GRACE_S = 1.0
"""After the program itself ended: time for its helpers (multiprocessing's resource tracker) to finish."""


def main() -> None:
    """Start the program, watch it and the cord, leave nothing behind."""
    cord, argv = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(cord, False)
    wake = _wake_on_signals()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned grandchildren become ours instead of init's, so that we can find them
    child, problem = _start(argv)
    if problem:
        _say(cord, f"failed {problem}")
        os._exit(127)
    _say(cord, f"started {child}")
    status = _watch(child, cord, wake)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    maxrss_bytes = used.ru_maxrss * (1024 if _LINUX else 1)
    _say(cord, f"used {used.ru_utime + used.ru_stime:.3f} {maxrss_bytes}")
    _end_like(status)


def _wake_on_signals() -> int:
    """A descriptor from which the numbers of arriving signals can be read."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*_FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def _start(argv: list[str]) -> tuple[int, str]:
    """Fork and execute; the child's pid, and why it could not be executed (empty: it could)."""
    leash = os.getpid()
    reader, writer = os.pipe()  # closed by a successful exec, carries the error of a failed one
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in (*_FORWARDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != leash:  # it died before the line above
                os._exit(127)
            _volunteer_for_oom()
            os.execvp(argv[0], argv)  # noqa: S606 - starting the program that was asked for is this script's task
        except OSError as error:
            os.write(writer, f"{error.errno} {error.strerror}".encode())
        finally:
            os._exit(127)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)  # here too: whoever comes first, the group exists before anyone signals it
    os.close(writer)
    problem = os.read(reader, 1000).decode()
    os.close(reader)
    return child, problem


def _watch(child: int, cord: int, wake: int) -> int:
    """Until the program and all that it started are gone; its wait status."""
    status: int | None = None
    deadline: float | None = None
    reaped = _reap()
    while True:
        status = reaped.get(child, status)
        if status is not None:
            deadline = deadline or time.monotonic() + _LEFTOVER_GRACE_S
            if not _LINUX:
                _signal(child, signal.SIGKILL)
            if not _descendants():
                return status
            if time.monotonic() >= deadline:
                return _kill_everything(child, status)
        ready, _, _ = select.select([cord, wake], [], [], None if status is None else 0.02)
        if cord in ready and not _read(cord):
            _signal(child, signal.SIGTERM)
            return _kill_everything(child, status, grace_s=_ORPHANED_GRACE_S)
        for number in _read(wake) if wake in ready else b"":
            if number in _FORWARDED and status is None:
                _signal(child, number)
        reaped = _reap()


def _kill_everything(child: int, status: int | None, *, grace_s: float = 0.0) -> int:
    deadline = time.monotonic() + grace_s
    while True:
        status = _reap().get(child, status)
        alive = _descendants()
        if not alive and status is not None:
            return status
        if time.monotonic() >= deadline:
            _signal(child, signal.SIGKILL)
            for pid in alive:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def _reap() -> dict[int, int]:
    """Wait statuses of children that have ended, adopted ones included."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _descendants() -> list[int]:
    """Every living process below us. Without /proc (macOS) empty: the process group is all that can be killed there."""
    if not _LINUX:
        return []
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # the name in brackets may itself hold spaces and brackets
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _volunteer_for_oom() -> None:
    """Where memory runs out, the kernel shall take the tool and not Model-Optimizer, which can tell what happened."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b"\0"
    except OSError:
        return b""


def _say(cord: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(cord, text.encode() + b"\n")


def _end_like(status: int) -> None:
    """With the program's own exit status; where a signal ended it, by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)
        os._exit(128 + number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
