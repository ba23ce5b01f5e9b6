"""What the kernel's text files say of memory, processor, limits and load. Unreadable text gives nothing."""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBER = re.compile(r"-?\d+")
_MEMINFO = re.compile(r"^(\w+(?:\(\w+\))?):\s+(\d+)(?: kB)?\s*$", re.MULTILINE)
_LIMIT = re.compile(r"^(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)", re.MULTILINE)


class Limit(NamedTuple):
    """A resource limit of this process; ``None`` = unlimited."""

    soft: int | None
    hard: int | None
    line: str


class Listener(NamedTuple):
    """A TCP socket that waits for connections; ``program`` where the kernel tells who holds it."""

    address: str
    port: int
    program: str | None = None
    pid: int | None = None


def whole(text: str) -> int | None:
    """The text as a whole number, ``None`` where it is none (``max``, empty, damaged)."""
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) and len(text) < 25 else None


def meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo``: name → bytes (huge page counts stay counts)."""
    found = {}
    for match in _MEMINFO.finditer(text):
        value = whole(match[2])
        if value is not None:
            found[match[1]] = value * 1024 if match[0].rstrip().endswith("kB") else value
    return found


def pairs(text: str, separator: str = "=") -> dict[str, str]:
    """Lines ``NAME=value`` (os-release, ``timedatectl show``, our probes), quotes taken off; the last one counts."""
    found = {}
    for line in text.splitlines():
        name, sign, value = line.partition(separator)
        if sign and name.strip() and not name.lstrip().startswith("#"):
            found[name.strip()] = value.strip().strip("\"'")
    return found


def lines_of(text: str) -> list[tuple[str, str]]:
    """``path: value`` lines as the probes of several files write them."""
    return [
        (path.strip(), value.strip())
        for path, sign, value in (line.partition(": ") for line in text.splitlines())
        if sign and path.strip()
    ]


def limits(text: str) -> dict[str, Limit]:
    """``/proc/self/limits``: ``Max open files`` → soft and hard."""
    found = {}
    for match in _LIMIT.finditer(text):
        line = " ".join(match.string[match.start() :].partition("\n")[0].split())
        soft, hard = (None if word == "unlimited" else whole(word) for word in (match[2], match[3]))
        if (soft is None) == (match[2] == "unlimited"):
            found[match[1]] = Limit(soft, hard, line)
    return found


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Instruction set flags of the first processor as the kernel writes them (x86 ``flags``, Arm ``Features``)."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def cpu_name(cpuinfo: str) -> str:
    """The processor's name; empty where the kernel gives none (Arm)."""
    match = re.search(r"^model name\s*:(.*)$", cpuinfo, re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def cpu_count(cpuinfo: str) -> int:
    """Processors that the kernel shows; 0 where the text says nothing."""
    return len(re.findall(r"^processor\s*:\s*\d+", cpuinfo, re.MULTILINE))


def cpu_list(text: str) -> list[int]:
    """``0-3,8`` → 0, 1, 2, 3, 8. Empty for what is no such list."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        start, end = whole(first), whole(last) if dash else whole(first)
        if start is None or end is None or not 0 <= start <= end < 65536:
            return []
        found.extend(range(start, end + 1))
    return found


def load_average(text: str) -> tuple[float, float, float] | None:
    """``/proc/loadavg``: the means over 1, 5 and 15 minutes."""
    match = re.match(r"\s*(\d+(?:\.\d+)?) (\d+(?:\.\d+)?) (\d+(?:\.\d+)?)\b", text)
    return (float(match[1]), float(match[2]), float(match[3])) if match else None


def steal_share(stat: str) -> float | None:
    """Share of processor time since boot that the hypervisor gave to others, of all time that was not idle.

    ``/proc/stat`` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal. ``None`` where little ran so far.
    """
    match = re.search(r"^cpu +(\d{1,19}(?: \d{1,19}){7,})", stat, re.MULTILINE)
    if match is None:
        return None
    user, nice, system, _, _, irq, softirq, steal = (int(word) for word in match[1].split()[:8])
    wanted = user + nice + system + irq + softirq + steal
    return steal / wanted if wanted > 1000 else None  # in ticks, of which there are commonly 100 a second


def version_of(text: str) -> tuple[int, ...]:
    """The first dotted number of a text: ``6.1.0-13-amd64`` → (6, 1, 0); empty where there is none."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match[0].split(".") if len(part) < 10) if match else ()


def listeners(ss: str, tcp: str) -> tuple[Listener, ...]:
    """Who waits for connections: from ``ss -Hltnp`` where it answered, else from ``/proc/net/tcp`` and ``tcp6``."""
    found = {}
    for line in tcp.splitlines():
        words = line.split()
        if len(words) > 3 and words[3] == "0A" and re.fullmatch(r"[0-9A-F]{8,32}:[0-9A-F]{4}", words[1]):
            address, port = words[1].split(":")
            found[int(port, 16)] = Listener(_address(address), int(port, 16))
    for line in ss.splitlines():
        match = re.match(r"LISTEN\s+\d+\s+\d+\s+(\S+):(\d{1,5})\s", line + " ")
        if match:
            holder = re.search(r'users:\(\("([^"]+)",pid=(\d+)', line)
            program, pid = (holder[1], int(holder[2])) if holder else (None, None)
            found[int(match[2])] = Listener(match[1], int(match[2]), program, pid)
    return tuple(found[port] for port in sorted(found))


def _address(hexadecimal: str) -> str:
    """``0100007F`` → ``127.0.0.1``; the kernel writes each 32-bit word in the byte order of the machine."""
    if set(hexadecimal) == {"0"}:
        return "*"
    if len(hexadecimal) == 8:
        return ".".join(str(int(hexadecimal[i : i + 2], 16)) for i in (6, 4, 2, 0))
    return "[::1]" if hexadecimal == "00000000000000000000000001000000" else "[ipv6]"
