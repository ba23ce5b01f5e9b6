"""Which distribution's commands to show, what the machine is in one line, and what still works on it."""

from __future__ import annotations

from collections.abc import Iterable

from model_optimizer.doctor.read.gpu import modules, nvidia_log, of_vendor
from model_optimizer.doctor.read.places import in_container, is_wsl, machine, os_release
from model_optimizer.doctor.read.system import cpu_count, cpu_flags, cpu_name, meminfo
from model_optimizer.records.doctor import HostFinding, Survey
from model_optimizer.units import format_bytes

_FAMILIES = {
    "debian": ("debian", "ubuntu"),
    "rhel": ("rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn"),
    "suse": ("suse", "opensuse", "sles"),
    "arch": ("arch", "manjaro"),
}
GPU_BROKEN = frozenset(
    ("driver-library-mismatch", "nvidia-smi-hangs", "fabric-not-ready", "gpu-fell-off-bus", "device-nodes-locked")
)
"""Errors with which no engine runs on the GPU, though the driver may name it."""


def family(survey: Survey) -> tuple[str, ...]:
    """Kinds of fixes that fit this host, the most specific first; always ends with ``any``."""
    kinds = []
    if in_container(survey) is not None:
        kinds.append("container")
    if is_wsl(survey):
        kinds.append("wsl2")
    release = os_release(survey)
    names = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split()
    kinds += [kind for kind, ids in _FAMILIES.items() if any(name in ids or name.startswith(ids) for name in names)]
    return (*kinds, "any")


def describe(survey: Survey) -> str:
    """``Debian GNU/Linux 12, AMD EPYC 9004, 2 processors, 23.5 GiB; NVIDIA H200 (driver 580.65.06)``."""
    cpuinfo = survey.text("cpuinfo")
    words = [os_release(survey).get("PRETTY_NAME", "unknown system")]
    if is_wsl(survey):
        words[0] += " (WSL)"
    words.append(cpu_name(cpuinfo) or machine(survey) or "unknown processor")
    if count := cpu_count(cpuinfo):
        words.append(f"{count} processors")
    if total := meminfo(survey.text("meminfo")).get("MemTotal"):
        words.append(format_bytes(total))
    log = nvidia_log(survey)
    if log is not None and log.gpus:
        names = [gpu.name for gpu in log.gpus]
        told = ", ".join(
            f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
        )
        gpus = f"{told} (driver {log.driver})"
    else:
        cards = [vendor for vendor in ("NVIDIA", "AMD", "Intel") if of_vendor(survey, vendor)]
        gpus = f"{' and '.join(cards)} graphics on the bus" if cards else "no GPU"
    place = " in a container" if in_container(survey) is not None else ""
    return f"{', '.join(words)}{place}; {gpus}"


def what_works(survey: Survey, findings: Iterable[HostFinding]) -> tuple[str, ...]:
    """What can be done here as it is, in the order of what people want first."""
    errors = {finding.id for finding in findings if finding.severity == "error"}
    log = nvidia_log(survey)
    works = []
    if log is not None and log.gpus and not errors & GPU_BROKEN:
        works.append("engines on the GPU: vLLM, SGLang, llama.cpp (model-optimize plan says which schemes)")
    elif "amdgpu" in modules(survey) and of_vendor(survey, "AMD"):
        works.append(
            "engines on the GPU through ROCm, from their own images; Model-Optimizer itself drives the CPU here"
        )
    flags = cpu_flags(survey.text("cpuinfo"))
    if machine(survey) == "x86_64" and "avx2" in flags:
        works.append("on the CPU: llama.cpp, vLLM's CPU build and transformers serve models; plan, inspect and report")
    elif "avx2" not in flags and machine(survey) == "x86_64" and flags:
        works.append("plan, inspect, report and load tests of servers elsewhere; the engines' CPU builds need AVX2")
    else:
        works.append("plan, inspect, report and load tests of servers elsewhere")
    return tuple(works)
