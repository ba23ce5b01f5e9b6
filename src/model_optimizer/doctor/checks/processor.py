"""The processor: instruction sets, clocks, memory nodes, time stolen by a hypervisor, and how busy it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from model_optimizer.doctor.read.places import machine, nvidia_gpu
from model_optimizer.doctor.read.system import (
    cpu_count,
    cpu_flags,
    cpu_list,
    cpu_name,
    lines_of,
    load_average,
    steal_share,
    whole,
)
from model_optimizer.records.doctor import Hit, Seen, Survey

_MUCH_STOLEN = 0.05
_SAVING = ("power", "balance_power")
_SELF_DRIVEN = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose ``powersave`` lets the processor choose its clock; there the preference (EPP) decides."""


def instruction_sets(survey: Survey) -> Iterator[Hit]:
    """What the engines' prebuilt CPU code needs (AVX2), and what their fast paths want (AVX512, bfloat16 units)."""
    cpuinfo = survey.text("cpuinfo")
    flags = cpu_flags(cpuinfo)
    if machine(survey) != "x86_64" or "sse2" not in flags:  # damaged or foreign: says nothing
        return
    seen = Seen(source="/proc/cpuinfo", text=_shown(cpuinfo, flags))
    values: dict[str, str | int | float] = {"cpu": cpu_name(cpuinfo) or "this processor"}
    if "avx2" not in flags:
        virtual = "hypervisor" in flags
        values["why"] = (
            "It is a virtual machine: its hypervisor may hide what the processor has"
            if virtual
            else "The processor is older than AVX2 (Intel 2013, AMD 2015), or a small model without it"
        )
        grave = nvidia_gpu(survey) is None  # with a GPU, engines can still run on that
        yield Hit(id="cpu-no-avx2", evidence=(seen,), values=values, severity="error" if grave else "warning")
    elif nvidia_gpu(survey) is None:
        if "avx512f" not in flags:
            yield Hit(id="cpu-no-avx512", evidence=(seen,), values=values)
        if not flags & {"avx512_bf16", "amx_bf16"}:
            yield Hit(id="cpu-no-bf16", evidence=(seen,), values=values)


def _shown(cpuinfo: str, flags: frozenset[str]) -> str:
    wanted = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "hypervisor")
    has = " ".join(flag for flag in wanted if flag in flags)
    return f"{cpu_name(cpuinfo) or 'no name'}; of interest in flags: {has or 'none'}"


def clocks(survey: Survey) -> Iterator[Hit]:
    """A governor or preference that keeps clocks low: what is measured then is not what the machine can do."""
    files = lines_of(survey.text("governors"))
    governors = Counter(value for path, value in files if path.endswith("scaling_governor"))
    drivers = {value for path, value in files if path.endswith("scaling_driver")}
    saving = Counter(value for path, value in files if path.endswith("energy_performance_preference"))
    own_choice = bool(drivers) and drivers <= set(_SELF_DRIVEN)
    preference, lean = next(((p, n) for p, n in saving.most_common() if p in _SAVING), ("", 0))
    driver = ", ".join(sorted(drivers)) or "unknown driver"
    if governors["powersave"] and drivers and not own_choice:
        text = f"powersave on {governors['powersave']} of {sum(governors.values())} processors ({driver})"
        yield Hit(
            id="cpu-governor-powersave",
            evidence=(Seen(source="/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", text=text),),
            values={"driver": driver},
        )
    elif own_choice and governors["powersave"] and lean:
        text = f"{preference} on {lean} of {sum(saving.values())} processors ({driver})"
        yield Hit(
            id="cpu-prefers-saving",
            evidence=(Seen(source="/sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference", text=text),),
            values={"preference": preference},
            severity="warning" if preference == "power" else "info",
        )


def memory_nodes(survey: Survey) -> Iterator[Hit]:
    """Several memory nodes: half of the memory is far from each core; balancing moves pages in use."""
    nodes = cpu_list(dict(lines_of(survey.text("numa"))).get("/sys/devices/system/node/has_cpu", ""))
    if len(nodes) < 2:
        return
    seen = Seen(source="/sys/devices/system/node/has_cpu", text=",".join(map(str, nodes)))
    yield Hit(id="numa-several-nodes", evidence=(seen,), values={"nodes": len(nodes)})
    balancing = whole(survey.text("numa-balancing"))
    if balancing:
        setting = Seen(source="/proc/sys/kernel/numa_balancing", text=str(balancing))
        yield Hit(id="numa-balancing-on", evidence=(setting, seen), values={"nodes": len(nodes)})


def stolen_time(survey: Survey) -> Iterator[Hit]:
    """Processor time that the hypervisor gave to other guests."""
    stat = survey.text("stat")
    share = steal_share(stat)
    if share is not None and share > _MUCH_STOLEN:
        line = next(line for line in stat.splitlines() if line.startswith("cpu "))
        yield Hit(
            id="cpu-time-stolen",
            evidence=(Seen(source="/proc/stat", text=line),),
            values={"share": f"{share:.0%}"},
        )


def busy(survey: Survey) -> Iterator[Hit]:
    """More programs that want to run than there are processors: measurements will be noisy."""
    load, cores = load_average(survey.text("loadavg")), cpu_count(survey.text("cpuinfo"))
    if load is None or not cores or load[0] <= cores * 0.5:
        return
    over = load[0] > cores
    evidence = (
        Seen(source="/proc/loadavg", text=survey.text("loadavg").strip()),
        Seen(source="/proc/cpuinfo", text=f"{cores} processors"),
    )
    values: dict[str, str | int | float] = {"load": f"{load[0]:g}", "cores": cores}
    yield Hit(id="machine-busy", evidence=evidence, values=values, severity="warning" if over else "info")


CHECKS = (instruction_sets, clocks, memory_nodes, stolen_time, busy)
