"""What can be done on an examined host, by the facts that ``plan`` refuses with: system, device, driver, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from model_optimizer.doctor.facts import GPU_BROKEN
from model_optimizer.doctor.read.gpu import nvidia_log
from model_optimizer.doctor.read.places import is_wsl, machine
from model_optimizer.doctor.read.system import cpu_flags, pairs
from model_optimizer.engines import ENGINES
from model_optimizer.errors import UnknownName
from model_optimizer.kb import query
from model_optimizer.records.doctor import Examination, Survey
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import OsName

_OURS = {"vllm-cpu": "vllm"}
"""The knowledge base's names of engines that Model-Optimizer drives under another."""
_NO_PACKAGES = frozenset(("libc-musl", "glibc-old", "python-unsupported", "system-not-linux", "machine-without-locks"))
"""Findings with which none of our environments can be built."""
_SYSTEMS: dict[str, OsName] = {"Linux": "linux", "Darwin": "macos", "Windows": "windows"}


def works(survey: Survey, found: Examination) -> tuple[str, ...]:
    """Engines by device, and what needs none."""
    system = pairs(survey.text("python"), ": ").get("system", "")
    if system not in _SYSTEMS:
        return found.works
    os = "wsl2" if is_wsl(survey) else _SYSTEMS[system]
    ids = {finding.id for finding in found.findings}
    can_build = not ids & _NO_PACKAGES
    lines = [*_on_gpus(survey, found, os, can_build), *_on_cpu(survey, os, can_build)]
    return (*lines, "without any engine: plan, inspect, report, diagnose, load tests of servers elsewhere")


def engines_on(gpu: GpuSpec | None, *, os: OsName, driver: str | None = None) -> tuple[str, ...]:
    """Ids of the serving engines that nothing in the tables keeps from running on that GPU, or (``None``) on a CPU."""
    platform = gpu.platform if gpu is not None else "cpu"
    name = gpu.id if gpu is not None else "cpu"
    return tuple(
        facts.id
        for facts in query.engines()
        if facts.server
        and platform in facts.platforms
        and all(state.may_try for state in query.gates(facts.id, name, os=os, driver=driver))
    )


def _on_gpus(survey: Survey, found: Examination, os: OsName, can_build: bool) -> Iterator[str]:
    log = nvidia_log(survey)
    errors = {finding.id for finding in found.findings if finding.severity == "error"}
    if log is None:  # AMD: the tables know too few of its boards' names, so the examination's own words stay
        yield from (line for line in found.works if line.startswith("engines on the GPU"))
    if log is None or errors & GPU_BROKEN:
        return
    for name in dict.fromkeys(gpu.name for gpu in log.gpus):
        try:
            spec = query.gpu(name)
        except UnknownName:
            yield f"on {name}: not in the tables, so no engine is named or refused"
            continue
        yield from _line(f"on {name}", engines_on(spec, os=os, driver=log.driver or None), can_build)


def _on_cpu(survey: Survey, os: OsName, can_build: bool) -> Iterator[str]:
    flags = cpu_flags(survey.text("cpuinfo"))
    if machine(survey) == "x86_64" and flags and "avx2" not in flags:
        return  # the packages' code stops at its first instruction
    yield from _line("on the CPU", engines_on(None, os=os), can_build)


def _line(where: str, ids: Iterable[str], can_build: bool) -> Iterator[str]:
    ours = [query.engine(id).title for id in ids if _OURS.get(id, id) in ENGINES]
    others = [query.engine(id).title for id in ids if _OURS.get(id, id) not in ENGINES]
    if not can_build:
        others, ours = ours + others, []
    if ours:
        yield f"{where}: {'; '.join(ours)}"
    if others:
        yield f"{where}, installed by you: {'; '.join(others)} (nothing in the tables refuses; not started by us)"
