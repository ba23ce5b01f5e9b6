"""What nvidia-smi, the kernel's modules and its log say of GPUs. Unreadable text gives nothing, never a guess."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree

from model_optimizer.doctor.read.system import lines_of
from model_optimizer.records.doctor import Seen, Survey

MIB = 1 << 20

Node = ElementTree.Element


class Process(NamedTuple):
    """A program on a GPU; memory in bytes where the driver tells."""

    pid: int
    name: str
    memory: int | None


class Gpu(NamedTuple):
    """One GPU as ``nvidia-smi -q -x`` describes it. ``None``: not told (``N/A``)."""

    at: str
    name: str
    total: int | None
    used: int | None
    free: int | None
    persistence: bool | None
    compute_mode: str
    mig: bool | None
    mig_devices: int
    ecc_on: bool | None
    ecc_uncorrectable: int
    rows_pending: bool
    rows_failed: bool
    power_limit_w: float | None
    default_power_limit_w: float | None
    max_power_limit_w: float | None
    slowdowns: tuple[str, ...]
    temperature_c: float | None
    link_gen: int | None
    link_gen_max: int | None
    link_width: int | None
    link_width_max: int | None
    state: str
    fabric: str
    processes: tuple[Process, ...]


class Log(NamedTuple):
    """The whole of ``nvidia-smi -q -x``."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]


class Pci(NamedTuple):
    """A display or compute device on the bus: address, vendor and device numbers (hexadecimal, lower case)."""

    address: str
    vendor: str
    device: str
    kind: str


_VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}
_SLOWDOWNS = {
    "sw_thermal_slowdown": "too hot (software)",
    "hw_thermal_slowdown": "too hot (hardware)",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sw_power_cap": "power limit",
}


def nvidia_log(survey: Survey) -> Log | None:
    """The parsed page; ``None`` where there is none or it is cut off."""
    text = survey.text("nvidia-smi-xml")
    start = text.find("<nvidia_smi_log")
    if start < 0:
        return None
    try:
        root = ElementTree.fromstring(text[start:])  # noqa: S314 (the driver's own page; expat limits expansion)
    except ElementTree.ParseError:
        return None
    gpus = tuple(_gpu(node) for node in root.findall("gpu"))
    return Log(_said(root, "driver_version"), _said(root, "cuda_version"), gpus)


def devices(survey: Survey) -> tuple[Pci, ...]:
    """Display controllers (class 03) and accelerators (class 12) of NVIDIA, AMD and Intel, from sysfs."""
    values: dict[str, dict[str, str]] = {}
    for path, value in lines_of(survey.text("pci-display")):
        folder, _, name = path.rpartition("/")
        values.setdefault(folder.rpartition("/")[2], {})[name] = value.lower().removeprefix("0x")
    return tuple(
        Pci(address, _VENDORS[found["vendor"]], found.get("device", ""), found["class"][:4])
        for address, found in sorted(values.items())
        if found.get("vendor") in _VENDORS and found.get("class", "")[:2] in ("03", "12")
    )


def of_vendor(survey: Survey, vendor: str) -> tuple[Pci, ...]:
    """Those of one maker."""
    return tuple(device for device in devices(survey) if device.vendor == vendor)


def shown(device: Pci) -> Seen:
    """The line of evidence for a device on the bus."""
    number = {name: number for number, name in _VENDORS.items()}[device.vendor]
    return Seen(source=f"/sys/bus/pci/devices/{device.address}", text=f"{device.vendor} {number}:{device.device}")


def modules(survey: Survey) -> frozenset[str]:
    """Names of the loaded kernel modules."""
    return frozenset(re.findall(r"^(\w+) \d+ ", survey.text("modules"), re.MULTILINE))


def module_version(survey: Survey) -> tuple[str, str]:
    """Version of the loaded NVIDIA module and the line that says it; empty where it is not loaded."""
    match = re.search(r"^NVRM version:.*?(\d+\.\d+(?:\.\d+)?)\b.*$", survey.text("nvidia-version"), re.MULTILINE)
    return (match[1], match[0].strip()) if match else ("", "")


def kernel_lines(survey: Survey, pattern: str) -> list[str]:
    """Lines of the kernel's log that match, in order, at most 20."""
    wanted = re.compile(pattern, re.IGNORECASE)
    return [line.strip()[:240] for line in survey.text("dmesg").splitlines() if wanted.search(line)][:20]


def _gpu(node: Node) -> Gpu:
    link = "pci/pci_gpu_link_info"
    return Gpu(
        at=node.get("id", "?"),
        name=_said(node, "product_name"),
        total=_mib(node, "fb_memory_usage/total"),
        used=_mib(node, "fb_memory_usage/used"),
        free=_mib(node, "fb_memory_usage/free"),
        persistence=_on(node, "persistence_mode"),
        compute_mode=_said(node, "compute_mode"),
        mig=_on(node, "mig_mode/current_mig"),
        mig_devices=len(node.findall("mig_devices/mig_device")),
        ecc_on=_on(node, "ecc_mode/current_ecc"),
        ecc_uncorrectable=_uncorrectable(node),
        rows_pending=_on(node, "remapped_rows/remapped_row_pending") is True,
        rows_failed=_on(node, "remapped_rows/remapped_row_failure") is True,
        power_limit_w=_watts(node, "current_power_limit", "power_limit"),
        default_power_limit_w=_watts(node, "default_power_limit"),
        max_power_limit_w=_watts(node, "max_power_limit"),
        slowdowns=_slowdowns(node),
        temperature_c=_number(_said(node, "temperature/gpu_temp")),
        link_gen=_whole(_said(node, f"{link}/pcie_gen/current_link_gen")),
        link_gen_max=_whole(_said(node, f"{link}/pcie_gen/max_link_gen")),
        link_width=_whole(_said(node, f"{link}/link_widths/current_link_width")),
        link_width_max=_whole(_said(node, f"{link}/link_widths/max_link_width")),
        state=_said(node, "performance_state"),
        fabric=_said(node, "fabric/state"),
        processes=tuple(_process(found) for found in node.findall("processes/process_info")),
    )


def _process(node: Node) -> Process:
    return Process(_whole(_said(node, "pid")) or 0, _said(node, "process_name"), _mib(node, "used_memory"))


def _uncorrectable(node: Node) -> int:
    """Uncorrectable errors since the driver was loaded."""
    volatile = node.find("ecc_errors/volatile")
    if volatile is None:
        return 0
    counts = [found for found in volatile.iter() if re.search(r"uncorrectable|double_bit", found.tag)]
    return max((_whole(found.text or "") or 0 for found in counts), default=0)


def _slowdowns(node: Node) -> tuple[str, ...]:
    found = []
    for group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for entry in node.iterfind(f"{group}/*"):
            name = re.sub(r"^clocks_(?:event|throttle)_reason_", "", entry.tag)
            if name in _SLOWDOWNS and (entry.text or "").strip() == "Active":
                found.append(_SLOWDOWNS[name])
    return tuple(dict.fromkeys(found))


def _watts(node: Node, *names: str) -> float | None:
    for group in ("gpu_power_readings", "power_readings"):
        for name in names:
            value = _number(_said(node, f"{group}/{name}"))
            if value is not None:
                return value
    return None


def _said(node: Node, path: str) -> str:
    found = node.find(path)
    text = (found.text or "").strip() if found is not None else ""
    return "" if text in ("N/A", "[N/A]", "[Not Supported]", "Unknown Error") else text


def _on(node: Node, path: str) -> bool | None:
    return {"enabled": True, "yes": True, "disabled": False, "no": False}.get(_said(node, path).lower())


def _number(text: str) -> float | None:
    match = re.match(r"-?\d{1,15}(?:\.\d{1,9})?(?!\d)", text)
    return float(match[0]) if match else None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _mib(node: Node, path: str) -> int | None:
    number = _number(_said(node, path))
    return None if number is None else int(number) * MIB
