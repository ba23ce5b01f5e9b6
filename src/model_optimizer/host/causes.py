"""What ended a program, from its exit status and its last output: one line a person can act on."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

_LONGEST = 400
_READ_BYTES = 512 * 1024
_PREFIXES = re.compile(
    r"^(?:\(\w+(?:[ _]\w+)* pid=\d+\)\s?)?"  # vLLM names the process: (EngineCore pid=41)
    # and writes records like this one: ERROR 12-01 04:03:17 [core.py:1510]
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]+\] ?)?"
)
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_ELSEWHERE = re.compile(
    r"see (?:the )?(?:stack ?trace|root cause|above|error|logs?)\b|^(?:SystemExit|KeyboardInterrupt)\b", re.IGNORECASE
)
_SPEAKS_OF_FAILURE = re.compile(
    r"\berror\b|\bfatal\b|\bfailed\b|what\(\):|terminate called|ASSERT|out of memory|cannot allocate|can't allocate"
    r"|already in use|illegal instruction|segmentation fault|no space left",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"\bMemoryError\b|bad_alloc|can'?t allocate memory|cannot allocate memory|failed to allocate|OutOfMemory",
    re.IGNORECASE,
)
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")


def first_cause(lines: Iterable[str]) -> str | None:
    """The line that says what went wrong first; ``None`` where nothing was printed.

    Of the last chain of tracebacks it is the exception that started it. Exceptions that only point elsewhere ("see root
    cause above") are passed over. Without a traceback: the first line that speaks of failure, else the last line.
    """
    stripped = [_PREFIXES.sub("", line, count=1).rstrip() for line in lines]
    for chain in reversed(_chains(stripped)):
        for exception in chain:
            if not _ELSEWHERE.search(exception):
                return exception[:_LONGEST]
    spoken = [line.strip() for line in stripped if line.strip()]
    for line in spoken:
        if _SPEAKS_OF_FAILURE.search(line):
            return line[:_LONGEST]
    return spoken[-1][:_LONGEST] if spoken else None


def _chains(lines: Sequence[str]) -> list[list[str]]:
    """The exceptions of each chain of tracebacks, in the order in which they were raised."""
    chains: list[list[str]] = []
    linked = False
    position = 0
    while position < len(lines):
        line = lines[position].strip()
        position += 1
        if line in _CHAINED:
            linked = True
        elif line == _TRACEBACK:
            while position < len(lines) and (not lines[position] or lines[position][0].isspace()):
                position += 1
            if position < len(lines):
                exception = _whole(lines, position)
                if linked and chains:
                    chains[-1].append(exception)
                else:
                    chains.append([exception])
                linked = False
                position += 1
    return chains


def _whole(lines: Sequence[str], position: int) -> str:
    """An exception's line, with what pydantic writes below it: the first names only the class that was not valid."""
    exception = lines[position]
    below = [line.strip() for line in lines[position + 1 : position + 3]]
    if re.search(r"\d+ validation errors? for ", exception) and below:
        return " ".join([exception, *below])
    return exception


def ran_out_of_memory(returncode: int, lines: Iterable[str], oom_kills: int = 0) -> bool:
    """Was memory the reason? By its own words, by the kernel's count, or by a SIGKILL that we did not send."""
    killed = returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return killed or oom_kills > 0 or any(_OUT_OF_MEMORY.search(line) for line in lines)


def count_oom_kills() -> int:
    """How often the kernel has killed for memory in our control group so far; 0 where it does not tell."""
    try:
        words = _CGROUP_EVENTS.read_text().split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0


def describe_status(returncode: int) -> str:
    """An exit status for people: ``exit status 1``, ``killed by SIGSEGV``, with what a rare signal means."""
    number = -returncode if returncode < 0 else returncode - 128
    names = {s.value: s.name for s in signal.Signals}
    if returncode in range(128) or number not in names:
        return f"exit status {returncode}"
    meaning = {
        signal.SIGILL: " (an instruction that this CPU does not have)",
        signal.SIGKILL: " (most often: the kernel ran out of memory)",
        signal.SIGBUS: " (often a full /dev/shm, or a file cut short while it is mapped)",
    }
    return f"killed by {names[number]}{meaning.get(signal.Signals(number), '')}"


def last_lines(log: Path, start: int = 0) -> list[str]:
    """What a log says from byte ``start`` on, its last half MiB at most."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _READ_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
