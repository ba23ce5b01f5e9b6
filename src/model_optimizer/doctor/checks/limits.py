"""What this process is allowed of the machine: control groups, shared memory, resource limits."""

from __future__ import annotations

from collections.abc import Iterator

from model_optimizer.doctor.read.places import env, group, in_container, is_wsl, places
from model_optimizer.doctor.read.system import cpu_count, cpu_list, limits, lines_of, meminfo
from model_optimizer.records.doctor import Hit, Seen, Survey
from model_optimizer.units import format_bytes

_GIB = 1 << 30
_FAR_BELOW = 0.75
_SMALL_SHM = 1 << 30
_FEW_FILES = 4096
"""An open connection, a mapped weight file and a compiled kernel each take one; vLLM's API server warns below 65535."""


def memory_limit(survey: Survey) -> Iterator[Hit]:
    """A control group that gives far less memory than the machine has."""
    total = meminfo(survey.text("meminfo")).get("MemTotal", 0)
    limit = group(survey)
    if total and limit.memory is not None and limit.memory < total * _FAR_BELOW:
        yield Hit(
            id="cgroup-memory-limit",
            evidence=(
                Seen(source=limit.memory_source, text=str(limit.memory)),
                Seen(source="/proc/meminfo", text=f"MemTotal: {total >> 10} kB"),
            ),
            values={"limit": format_bytes(limit.memory), "total": format_bytes(total)},
            severity="warning" if limit.memory < 8 * _GIB else "info",
        )


def core_limit(survey: Survey) -> Iterator[Hit]:
    """A control group, or the processors it may use, that leaves far fewer cores than the machine shows."""
    cores = cpu_count(survey.text("cpuinfo"))
    limit = group(survey)
    allowed, source, line = limit.cores, limit.cores_source, f"{limit.cores:g} cores" if limit.cores else ""
    for path, value in lines_of(survey.text("cgroup-limits")):
        if path.endswith(("cpuset.cpus.effective", "cpuset.effective_cpus")):
            count = len(cpu_list(value))
            if count and (allowed is None or count < allowed):
                allowed, source, line = float(count), path, value
    if cores and allowed is not None and allowed < cores * _FAR_BELOW:
        yield Hit(
            id="cgroup-cpu-limit",
            evidence=(
                Seen(source=source, text=line),
                Seen(source="/proc/cpuinfo", text=f"{cores} processors"),
            ),
            values={"limit": f"{allowed:g}", "cores": cores},
            severity="warning" if allowed < 2 else "info",
        )


def shared_memory(survey: Survey) -> Iterator[Hit]:
    """Too little in /dev/shm for engines of several processes: containers get 64 MiB unless told otherwise."""
    shm = next((place for place in places(survey) if place.role == "shm"), None)
    if shm is None or shm.mount != "/dev/shm":  # noqa: S108
        return
    memory = meminfo(survey.text("meminfo")).get("MemTotal", 0)
    if shm.total < _SMALL_SHM and (not memory or memory > 4 * _GIB):
        yield Hit(
            id="shm-small",
            evidence=(Seen(source="statvfs /dev/shm", text=f"{format_bytes(shm.total)} in all ({shm.kind})"),),
            values={"size": format_bytes(shm.total)},
            severity="warning",
        )
    elif shm.total >= _SMALL_SHM and shm.available < _SMALL_SHM // 4:
        yield Hit(
            id="shm-full",
            evidence=(
                Seen(
                    source="statvfs /dev/shm",
                    text=f"{format_bytes(shm.available)} free of {format_bytes(shm.total)}",
                ),
            ),
            values={"free": format_bytes(shm.available), "size": format_bytes(shm.total)},
        )


def locked_memory(survey: Survey) -> Iterator[Hit]:
    """A small limit of locked memory where InfiniBand or RoCE is there, whose buffers must be locked."""
    found = limits(survey.text("limits")).get("Max locked memory")
    adapters = [path for path, _ in lines_of(survey.text("infiniband"))]
    if found is None or found.soft is None or found.soft >= _GIB or not adapters:
        return
    if env(survey).get("NCCL_IB_DISABLE") == "1":
        return
    yield Hit(
        id="memlock-low",
        evidence=(
            Seen(source="/proc/self/limits", text=found.line),
            Seen(
                source="/sys/class/infiniband",
                text=", ".join(sorted({p.split("/")[4] for p in adapters if p.count("/") > 4})),
            ),
        ),
        values={"limit": format_bytes(found.soft)},
    )


def open_files(survey: Survey) -> Iterator[Hit]:
    """A limit of open files that many connections at once would reach."""
    found = limits(survey.text("limits")).get("Max open files")
    if found is None or found.soft is None or found.soft >= _FEW_FILES:
        return
    raisable = found.hard is None or found.hard >= 65536
    yield Hit(
        id="nofile-low",
        evidence=(Seen(source="/proc/self/limits", text=found.line),),
        values={"limit": found.soft, "hard": "unlimited" if found.hard is None else found.hard},
        severity="info" if raisable or found.soft >= 1024 else "warning",
    )


def container(survey: Survey) -> Iterator[Hit]:
    """These readings come from inside a container: the host's settings are seen only in part."""
    mark = in_container(survey)
    if mark is not None and not is_wsl(survey):
        yield Hit(id="in-container", evidence=(Seen(source="container marks", text=mark[:160]),))


CHECKS = (memory_limit, core_limit, shared_memory, locked_memory, open_files, container)
