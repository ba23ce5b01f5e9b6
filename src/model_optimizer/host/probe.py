"""What this machine is: the facts that measurements depend on and that limit a plan, read now, in milliseconds."""

from __future__ import annotations

import csv
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from model_optimizer.errors import HostError, TimedOut
from model_optimizer.host.process import run
from model_optimizer.records.hardware import DetectedGpu, HostSpec

_ROOT = Path("/")
_FEATURES = {
    # x86, as /proc/cpuinfo writes them
    "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx_vnni": "avx_vnni",
    "avx512f": "avx512f", "avx512_vnni": "avx512_vnni", "avx512_bf16": "avx512_bf16", "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile", "amx_int8": "amx_int8", "amx_bf16": "amx_bf16",
    # Arm: the kernel's name and the one people use
    "asimd": "neon", "asimdhp": "fp16", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve",
    "sve2": "sve2",
}  # fmt: skip
_NVIDIA_SMI_TIMEOUT_S = 30.0
_GPU_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "driver_version", "power.limit", "compute_cap")


def probe_host(disk: Path, *, root: Path = _ROOT) -> HostSpec:
    """This machine as seen by this process: affinity and control-group limits count, not what the hardware has.

    ``disk`` is the folder (it need not exist yet) whose file system is asked for free space. ``root`` stands for ``/``
    in tests.
    """
    cpuinfo = _cpuinfo(_read(root / "proc/cpuinfo"))
    total, available = _memory(root)
    return HostSpec(
        os=_os_name(_read(root / "etc/os-release")),
        kernel=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        cpu_name=_cpu_name(cpuinfo),
        cpu_cores=cpu_cores(root),
        cpu_features=_cpu_features(cpuinfo),
        memory_bytes=total,
        available_memory_bytes=available,
        free_disk_bytes=free_disk_bytes(disk),
        gpus=detect_gpus(),
    )


def cpu_cores(root: Path = _ROOT) -> int:
    """Cores that this process may use: its affinity, and the whole cores of its control group's quota (at least 1)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _control_groups(root):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:  # version 1
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.strip().isdigit() and period.strip().isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def available_memory_bytes() -> int:
    """Bytes that programs may still take without swapping, no more than the control group allows."""
    return _memory(_ROOT)[1]


def free_disk_bytes(folder: Path) -> int:
    """Free bytes of the file system on which ``folder`` lies or will lie."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free


def detect_gpus(environ: Mapping[str, str] | None = None) -> tuple[DetectedGpu, ...]:
    """The NVIDIA GPUs that the driver shows and ``CUDA_VISIBLE_DEVICES`` leaves; none where there is no driver.

    Asks ``nvidia-smi``, with a time limit: on a machine with a broken driver it can hang.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    for fields in (_GPU_FIELDS, _GPU_FIELDS[:-1]):  # drivers before 510 do not know compute_cap
        try:
            ask = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
            done = run(ask, timeout_s=_NVIDIA_SMI_TIMEOUT_S)
        except (HostError, TimedOut):
            return ()
        if done.returncode == 0:
            return parse_gpus("\n".join(done.tail), fields, os.environ if environ is None else environ)
    return ()


def parse_gpus(text: str, fields: tuple[str, ...], environ: Mapping[str, str]) -> tuple[DetectedGpu, ...]:
    """The answer of ``nvidia-smi --query-gpu=… --format=csv,noheader,nounits`` (memory in MiB, power in W)."""
    gpus = {}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        values = {field: value for field, value in zip(fields, row, strict=False) if not value.startswith("[")}
        if not {"index", "uuid", "name", "memory.total"} <= values.keys() or not values["memory.total"].isdigit():
            continue  # unified memory (Jetson, DGX Spark) has no number here, and an error line is no GPU
        gpus[values["uuid"]] = DetectedGpu(
            index=int(values["index"]),
            name=values["name"],
            memory_bytes=int(values["memory.total"]) << 20,
            free_memory_bytes=int(values["memory.free"]) << 20 if values.get("memory.free", "").isdigit() else None,
            compute_capability=values.get("compute_cap"),
            driver=values.get("driver_version"),
            power_limit_w=float(values["power.limit"]) if "power.limit" in values else None,
        )
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(gpus.values())
    kept = []
    for word in (part.strip() for part in visible.split(",")):
        match = [gpu for uuid, gpu in gpus.items() if word == str(gpu.index) or (word and uuid.startswith(word))]
        if not match:  # CUDA itself stops at the first entry that it does not know
            break
        kept.append(match[0])
    return tuple(kept)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _control_groups(root: Path) -> Iterator[Path]:
    """The control group of this process and its parents, each of which may set a limit."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        top = mount / controllers if controllers else mount
        group = top / path.lstrip("/")
        # in a container the path may be the host's, of which only the mount point itself can be seen
        yield from (place for place in (group, *group.parents) if place.is_relative_to(top) and place.is_dir())


def _memory(root: Path) -> tuple[int, int]:
    """Bytes of memory in all and available, no more than the control group allows.

    Of a limit, what is used already is not available; file cache that the kernel would give up is.
    """
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    for group in _control_groups(root):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        if not limit.isdigit() or int(limit) >= memory.total:
            continue
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes") or "0"
        cache = re.search(r"^(?:total_)?inactive_file (\d+)", _read(group / "memory.stat"), re.MULTILINE)
        left = int(limit) - max(0, int(used) - (int(cache[1]) if cache else 0))
        total, available = min(total, int(limit)), min(available, max(0, left))
    return total, available


def _cpuinfo(text: str) -> dict[str, str]:
    """The fields of the first processor."""
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cpu_name(cpuinfo: Mapping[str, str]) -> str:
    if name := cpuinfo.get("model name"):
        return " ".join(name.split())
    if implementer := cpuinfo.get("CPU implementer"):  # Arm gives numbers only
        return f"Arm implementer {implementer} part {cpuinfo.get('CPU part', '?')}"
    return platform.processor() or platform.machine()


def _cpu_features(cpuinfo: Mapping[str, str]) -> tuple[str, ...]:
    flags = set((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
    return tuple(ours for kernels, ours in _FEATURES.items() if kernels in flags)


def _os_name(os_release: str) -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', os_release, re.MULTILINE)
    return match[1] if match else f"{platform.system()} {platform.mac_ver()[0]}".strip()
