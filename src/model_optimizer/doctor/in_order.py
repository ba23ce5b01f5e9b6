"""What was looked at and found in order: one line a topic, only where it was really read and nothing contradicts it."""

from __future__ import annotations

from collections.abc import Iterator, Set

from model_optimizer.doctor.read.places import env, json_lines, places
from model_optimizer.doctor.read.system import cpu_count, cpu_flags, listeners, load_average, meminfo, pairs
from model_optimizer.records.doctor import Survey
from model_optimizer.units import format_bytes


def in_order(survey: Survey, found: Set[str]) -> tuple[str, ...]:
    """Lines about what is well; ``found`` are the ids of findings of severity warning or error."""
    topics = (
        _memory(survey, found),
        _processor(survey, found),
        _disks(survey, found),
        _shared_memory(survey, found),
        _software(survey, found),
        _clock(survey, found),
        _network(survey, found),
        _ports(survey),
        _tools(survey, found),
    )
    return tuple(line for topic in topics for line in topic)


def _memory(survey: Survey, found: Set[str]) -> Iterator[str]:
    memory = meminfo(survey.text("meminfo"))
    total, available = memory.get("MemTotal"), memory.get("MemAvailable")
    if total and available is not None and not found & {"memory-small", "memory-taken", "swap-in-use"}:
        yield f"memory: {format_bytes(available)} of {format_bytes(total)} available"


def _processor(survey: Survey, found: Set[str]) -> Iterator[str]:
    cpuinfo = survey.text("cpuinfo")
    sets = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd") if name in cpu_flags(cpuinfo)]
    load = load_average(survey.text("loadavg"))
    if sets and "cpu-no-avx2" not in found:
        yield f"processor: {', '.join(sets)}"
    if load is not None and cpu_count(cpuinfo) and "machine-busy" not in found:
        yield f"load: {load[0]:g} on {cpu_count(cpuinfo)} processors over the last minute"


def _disks(survey: Survey, found: Set[str]) -> Iterator[str]:
    if "home-not-writable" in found or any(id.startswith("disk-") for id in found):
        return
    home = next((place for place in places(survey) if place.role == "home"), None)
    if home is not None:
        yield f"disk: {format_bytes(home.available)} free for {home.path} ({home.kind})"


def _shared_memory(survey: Survey, found: Set[str]) -> Iterator[str]:
    shm = next((place for place in places(survey) if place.role == "shm" and place.mount == "/dev/shm"), None)  # noqa: S108
    if shm is not None and not found & {"shm-small", "shm-full"}:
        yield f"{shm.mount}: {format_bytes(shm.total)}"


def _software(survey: Survey, found: Set[str]) -> Iterator[str]:
    python = pairs(survey.text("python"), ": ")
    if python.get("version") and not found & {"python-unsupported", "libc-musl", "glibc-old", "system-not-linux"}:
        yield f"software: Python {python['version']}, {python.get('libc', 'C library not known')}"


def _clock(survey: Survey, found: Set[str]) -> Iterator[str]:
    if found & {"clock-wrong", "clock-off", "clock-behind-files"}:
        return
    if pairs(survey.text("timedatectl")).get("NTPSynchronized") == "yes":
        yield "clock: kept by a time service"


def _network(survey: Survey, found: Set[str]) -> Iterator[str]:
    hub = pairs(survey.text("hub"), ": ")
    if "token" in hub and "hub-token-readable" not in found:
        where = {"none": "no token", "file": "token in a file"}.get(hub["token"], "token in the environment")
        size = hub.get("cache-bytes", "")
        full = f"{format_bytes(int(size))} of models" if size.isdigit() else "nothing yet"
        if hub.get("cache-measured") == "no":
            full = f"at least {full}"
        yield f"Hugging Face: {where}; {full} in {hub.get('cache', 'the cache')}"
    proxies = [name for name in env(survey) if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]
    if survey.status("environment") == "ok" and not proxies:
        yield "proxy: none set"


def _ports(survey: Survey) -> Iterator[str]:
    if survey.status("tcp4") != "ok" and survey.status("ss") != "ok":
        return
    taken = {entry.port for entry in listeners(survey.text("ss"), survey.text("tcp4") + "\n" + survey.text("tcp6"))}
    free = [str(port) for port in (8000, 8080, 30000) if port not in taken]
    if free:
        yield f"ports free: {', '.join(free)}"


def _tools(survey: Survey, found: Set[str]) -> Iterator[str]:
    if survey.status("tool-environments") != "ok" or found & {"tool-lost-python", "tool-damaged"}:
        return
    entries = json_lines(survey.text("tool-environments"))
    names = [str(e.get("folder", "")).rpartition("/")[2].rpartition("-")[0] for e in entries]
    there = ", ".join(f"{n} {e.get('version', '')}".strip() for n, e in zip(names, entries, strict=True) if n)
    yield (
        f"engine environments: {there}"
        if there
        else "engine environments: none built yet (model-optimize tools install)"
    )
