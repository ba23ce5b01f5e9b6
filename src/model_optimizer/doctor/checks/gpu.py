"""Each NVIDIA GPU: errors, limits, what else runs on it, and how much memory is really free."""

from __future__ import annotations

import re
from collections.abc import Iterator

from model_optimizer.doctor.read.gpu import Gpu, kernel_lines, nvidia_log
from model_optimizer.doctor.read.places import env
from model_optimizer.records.doctor import Hit, Seen, Survey
from model_optimizer.units import format_bytes, format_share

_SOURCE = "nvidia-smi -q"
_GIB = 1 << 30
_FREE_SHARE = 0.92
"""vLLM asks for this share of the whole memory; what others hold is missing from it."""

XIDS = {
    13: "a kernel read or wrote out of bounds: the program's fault more often than the card's",
    31: "an access to memory that was not mapped: the program's fault more often than the card's",
    43: "a program's channel was reset: follows from its own error",
    48: "an error of two bits in memory that ECC could not correct",
    63: "a bad row of memory was retired or will be at the next reset",
    64: "a bad row of memory could not be retired",
    74: "an error on an NVLink",
    79: "the GPU has fallen off the bus: it does not answer any more",
    94: "a memory error that was contained to one program",
    95: "a memory error that was not contained: every program on the GPU may hold wrong data",
    119: "the GPU's own processor (GSP) did not answer in time",
    120: "the GPU's own processor (GSP) failed",
    154: "the GPU asks for a reset or a reboot",
}
_GRAVE = frozenset({48, 64, 74, 79, 95, 119, 120, 154})


def errors(survey: Survey) -> Iterator[Hit]:
    """Xid events of the kernel's log, each number once, with its meaning; uncorrectable memory errors."""
    said: set[int] = set()
    for line in kernel_lines(survey, r"NVRM: Xid"):
        match = re.search(r"NVRM: Xid \(([^)]*)\): (\d{1,5})\b", line)
        if match is None or int(match[2]) in said:
            continue
        number = int(match[2])
        said.add(number)
        if number == 79:
            yield Hit(id="gpu-fell-off-bus", evidence=(Seen(source="dmesg", text=line),), values={"at": match[1]})
            continue
        meaning = XIDS.get(number, "see NVIDIA's list of Xid errors")
        yield Hit(
            id="xid-error",
            evidence=(Seen(source="dmesg", text=line),),
            values={"number": number, "meaning": meaning, "at": match[1]},
            severity="error" if number in _GRAVE else "warning",
        )
    for gpu in _gpus(survey):
        if gpu.ecc_uncorrectable or gpu.rows_failed:
            text = f"{gpu.ecc_uncorrectable} uncorrectable errors since the driver was loaded"
            yield Hit(id="ecc-errors", evidence=(_seen(gpu, text),), values={"gpu": gpu.name})
        elif gpu.rows_pending:
            yield Hit(
                id="ecc-rows-pending", evidence=(_seen(gpu, "Remapped Rows Pending: Yes"),), values={"gpu": gpu.name}
            )


def taken(survey: Survey) -> Iterator[Hit]:
    """Programs on the GPU, and memory that an engine's share of the whole would need and that is not free."""
    for gpu in _gpus(survey):
        if gpu.mig or not gpu.total or gpu.free is None:
            continue
        heavy = [process for process in gpu.processes if (process.memory or 0) > _GIB // 4]
        if gpu.free >= _FREE_SHARE * gpu.total:
            continue
        told = f"{format_bytes(gpu.free)} free of {format_bytes(gpu.total)}"
        evidence = [_seen(gpu, told)]
        evidence += [
            Seen(source="nvidia-smi", text=f"pid {p.pid} {p.name} holds {format_bytes(p.memory or 0)}")
            for p in heavy[:4]
        ]
        share = (gpu.free - _GIB // 4) / gpu.total
        yield Hit(
            id="gpu-memory-taken",
            evidence=tuple(evidence),
            values={
                "gpu": gpu.name,
                "free": format_bytes(gpu.free),
                "total": format_bytes(gpu.total),
                "share": f"{max(0.05, int(share * 100) / 100):.2f}",
            },
            severity="warning" if gpu.free < 0.85 * gpu.total else "info",
        )


def power(survey: Survey) -> Iterator[Hit]:
    """A power limit below the card's own, and clocks that are held down now."""
    for gpu in _gpus(survey):
        limit, usual, most = gpu.power_limit_w, gpu.default_power_limit_w, gpu.max_power_limit_w
        if limit is not None and usual is not None and limit < 0.97 * usual:
            yield Hit(
                id="power-limit-lowered",
                evidence=(_seen(gpu, f"power limit {limit:.0f} W, default {usual:.0f} W"),),
                values={
                    "gpu": gpu.name,
                    "limit": f"{limit:.0f}",
                    "default": f"{usual:.0f}",
                    "share": format_share(limit / usual),
                },
            )
        elif limit is not None and most is not None and limit < 0.6 * most:
            yield Hit(
                id="power-limit-class",
                evidence=(_seen(gpu, f"power limit {limit:.0f} W, at most {most:.0f} W"),),
                values={
                    "gpu": gpu.name,
                    "limit": f"{limit:.0f}",
                    "most": f"{most:.0f}",
                    "share": format_share(limit / most),
                },
            )
        hot = [reason for reason in gpu.slowdowns if "hot" in reason or "brake" in reason or "hardware" in reason]
        if hot:
            degrees = f", {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""
            yield Hit(
                id="clocks-held-down",
                evidence=(_seen(gpu, f"active: {', '.join(hot)}{degrees}"),),
                values={"gpu": gpu.name, "why": ", ".join(hot)},
            )


def modes(survey: Survey) -> Iterator[Hit]:
    """MIG, exclusive or prohibited compute, persistence."""
    for gpu in _gpus(survey):
        if gpu.mig and not gpu.mig_devices:
            yield Hit(
                id="mig-without-instances",
                evidence=(_seen(gpu, "MIG enabled, no MIG device"),),
                values={"gpu": gpu.name},
            )
        elif gpu.mig:
            yield Hit(
                id="mig-on",
                evidence=(_seen(gpu, f"MIG enabled, {gpu.mig_devices} devices"),),
                values={"gpu": gpu.name, "number": gpu.mig_devices},
            )
        if gpu.compute_mode in ("Prohibited", "Exclusive_Process", "Exclusive_Thread"):
            yield Hit(
                id="compute-mode",
                evidence=(_seen(gpu, f"Compute Mode: {gpu.compute_mode}"),),
                values={"gpu": gpu.name, "mode": gpu.compute_mode},
                severity="error" if gpu.compute_mode == "Prohibited" else "warning",
            )
    off = [gpu for gpu in _gpus(survey) if gpu.persistence is False]
    if off:
        yield Hit(id="persistence-off", evidence=(_seen(off[0], "Persistence Mode: Disabled"),))


def links(survey: Survey) -> Iterator[Hit]:
    """Fewer PCIe lanes than the card has. (An idle card lowers its generation on purpose; lanes it keeps.)"""
    for gpu in _gpus(survey):
        width, most = gpu.link_width, gpu.link_width_max
        if width and most and width < most:
            yield Hit(
                id="pcie-lanes-few",
                evidence=(_seen(gpu, f"link width {width}x, at most {most}x"),),
                values={"gpu": gpu.name, "width": width, "most": most},
                severity="warning" if width * 4 <= most else "info",
            )
        busy = gpu.state in ("P0", "P1", "P2") and gpu.link_gen and gpu.link_gen_max
        if busy and (gpu.link_gen or 0) < (gpu.link_gen_max or 0) and gpu.processes:
            yield Hit(
                id="pcie-generation-low",
                evidence=(_seen(gpu, f"{gpu.state}, PCIe generation {gpu.link_gen}, at most {gpu.link_gen_max}"),),
                values={"gpu": gpu.name, "now": gpu.link_gen or 0, "most": gpu.link_gen_max or 0},
            )


def visible(survey: Survey) -> Iterator[Hit]:
    """CUDA_VISIBLE_DEVICES that hides all GPUs, or names one that is not here."""
    known = env(survey)
    log = nvidia_log(survey)
    wanted = known.get("CUDA_VISIBLE_DEVICES")
    if wanted is None or log is None or not log.gpus:
        return
    seen = Seen(source="environment", text=f"CUDA_VISIBLE_DEVICES={wanted}")
    first = wanted.split(",")[0].strip()
    if first in ("", "-1"):
        yield Hit(id="cuda-devices-hidden", evidence=(seen,))
    elif first.isdigit() and int(first) >= len(log.gpus):
        yield Hit(id="cuda-device-unknown", evidence=(seen,), values={"wanted": first, "number": len(log.gpus)})


def _gpus(survey: Survey) -> tuple[Gpu, ...]:
    log = nvidia_log(survey)
    return log.gpus if log is not None else ()


def _seen(gpu: Gpu, text: str) -> Seen:
    return Seen(source=_SOURCE, text=f"{gpu.name} ({gpu.at}): {text}")


CHECKS = (errors, taken, power, modes, links, visible)
