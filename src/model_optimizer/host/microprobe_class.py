"""What a measured rate means: against the class of this GPU, with the reason that its own readings give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_optimizer.kb.find import matching_gpus
from model_optimizer.records.doctor import ProbedValue
from model_optimizer.records.hardware import PCIE_LANE_BYTES_S, GpuSpec, PcieLink

USUAL_SHARE = {"bandwidth": 0.80, "matrix": 0.60, "transfer": 0.70}
"""Below these, something holds the GPU back: copies reach 85 to 95 % of the data sheet, large products 65 to 85 %
(the clock drops under the power limit), pinned transfers about 80 % of the link."""

_ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}
_LIMITED = 0.95
_SLOW_CLOCK = 0.85
_REASONS = {0x8: "slowed down by the hardware", 0x20: "thermal limit", 0x40: "thermal limit", 0x80: "power brake"}


def against_class(result: Mapping[str, Any]) -> tuple[ProbedValue, ...]:
    """The worker's result as records. ``expected`` where the GPU is known and the figure can be compared."""
    device = result.get("device", {})
    matching = matching_gpus(str(device.get("name", ""))) if device.get("kind") == "cuda" else ()
    spec = matching[0] if len(matching) == 1 else None
    return tuple(_value(entry, device, spec) for entry in result.get("values", ()))


def _value(entry: Mapping[str, Any], device: Mapping[str, Any], spec: GpuSpec | None) -> ProbedValue:
    median, kind = float(entry["median"]), str(entry["kind"])
    spread = (entry["high"] - entry["low"]) / 2 / median if median else 0.0
    expected = _expected(entry, device, spec) if spec is not None else None
    share = median / expected if expected else None
    return ProbedValue(
        name=str(entry["name"]),
        unit=str(entry["unit"]),
        measured=median,
        expected=expected,
        share=share,
        how=f"{entry['how']}, median of {entry['repeats']}, half of them within ±{spread:.0%}",
        note=_note(kind, entry, share, device, spec) if share is not None and spec is not None else "",
    )


def _expected(entry: Mapping[str, Any], device: Mapping[str, Any], spec: GpuSpec) -> float | None:
    """Peak bandwidth; the roofline of a product: dense peak, or its weights read once; the link in one direction."""
    bandwidth = spec.memory_bandwidth_bytes_s.value
    if entry["kind"] == "bandwidth":
        return bandwidth
    if entry["kind"] == "transfer":
        link = _link(device, "current") or (spec.pcie.value if spec.pcie is not None else None)
        return link.bytes_s if link is not None and entry.get("pinned") is True else None
    peak = spec.dense_flops.get(str(entry["dtype"]))
    if peak is None:
        return None
    rows, n, k = (int(number) for number in entry["shape"])
    size = _ELEMENT_BYTES[str(entry["dtype"])]
    return min(peak.value, 2 * rows * n * k / ((n * k + rows * k) * size + rows * n * 2) * bandwidth)


def _note(kind: str, entry: Mapping[str, Any], share: float, device: Mapping[str, Any], spec: GpuSpec) -> str:
    if kind == "matrix" and entry["shape"][0] < 4096:  # small products also measure how kernels are chosen
        return ""
    if share >= USUAL_SHARE[kind]:
        return f"{share:.0%} of its class, as usual"
    reasons = _link_reasons(device, spec) if kind == "transfer" else _reasons(device, spec)
    told = ", ".join(reasons) or "nothing in its clocks and limits says why; other programs on it?"
    what = "the link runs" if kind == "transfer" else "this GPU runs"
    return f"{what} at {share:.0%} of its class ({spec.title}): {told}"


def _reasons(device: Mapping[str, Any], spec: GpuSpec) -> list[str]:
    read = device.get("under_load", {})
    found = []
    limit, default = _float(read.get("power.limit")), _float(read.get("power.default_limit"))
    known = [spec.tdp_w.value] if spec.tdp_w is not None else []
    full = max([*known, *(spec.tdp_range_w or ()), *([default] if default else [])], default=None)
    if limit and full and limit < _LIMITED * full:
        found.append(f"power limit {limit:.0f} W of {full:.0f} W")
    clock, fastest = _float(read.get("clocks.sm")), _float(read.get("clocks.max.sm"))
    if clock and fastest and clock < _SLOW_CLOCK * fastest:
        found.append(f"{clock:.0f} of {fastest:.0f} MHz under load")
    active = _bits(read.get("reasons"))
    found += dict.fromkeys(text for bit, text in _REASONS.items() if active & bit)
    temperature = _float(read.get("temperature.gpu"))
    if "thermal limit" in found and temperature:
        found[found.index("thermal limit")] = f"thermal limit at {temperature:.0f} °C"
    count = device.get("multiprocessors")
    if spec.multiprocessors is not None and isinstance(count, int) and count < spec.multiprocessors.value:
        found.append(f"{count} of {spec.multiprocessors.value} multiprocessors (a MIG slice?)")
    return found


def _link_reasons(device: Mapping[str, Any], spec: GpuSpec) -> list[str]:
    now, most = _link(device, "current"), _link(device, "max")
    if now is None:
        return []
    full = most or (spec.pcie.value if spec.pcie is not None else None)
    if full is not None and now.bytes_s < full.bytes_s:
        return [f"PCIe {now.generation}.0 x{now.lanes} of {full.generation}.0 x{full.lanes}"]
    return []


def _link(device: Mapping[str, Any], which: str) -> PcieLink | None:
    read = device.get("under_load", {})
    generation, lanes = _float(read.get(f"pcie.link.gen.{which}")), _float(read.get(f"pcie.link.width.{which}"))
    if not generation or not lanes or int(generation) not in PCIE_LANE_BYTES_S:
        return None
    return PcieLink(generation=int(generation), lanes=int(lanes))


def _float(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def _bits(text: object) -> int:
    try:
        return int(str(text), 16)
    except ValueError:
        return 0
