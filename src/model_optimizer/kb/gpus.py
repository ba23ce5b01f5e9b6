"""The GPUs: YAML entries → ``GpuSpec``, one file an architecture."""

from __future__ import annotations

from functools import cache
from importlib.resources.abc import Traversable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from model_optimizer.kb.load import data_folder, read_yaml, to_record, wrong
from model_optimizer.kb.quantities import BytesPerSecond, Flops, Hertz, Watts, WrittenBytes
from model_optimizer.kb.sources import Given, Ids, SourceEntry, Sources
from model_optimizer.records.base import Record
from model_optimizer.records.hardware import GpuSpec, GpuVendor, PcieLink


def _pcie(value: Any) -> Any:
    """``4.0 x16`` → generation and lanes."""
    generation, _, lanes = str(value).partition(" x")
    if not lanes.isdigit() or not generation.removesuffix(".0").isdigit():
        raise ValueError(f"{value!r}: write for example '4.0 x16'")
    return {"generation": int(generation.removesuffix(".0")), "lanes": int(lanes)}


Written = Annotated[PcieLink, BeforeValidator(_pcie)]
PciId = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]
Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")]


class _Architecture(Record):
    id: str
    title: str
    vendor: GpuVendor


class _Multiprocessors(Given[Annotated[int, Field(gt=0)]]):
    kind: str = "SM"


class _Memory(Given[WrittenBytes]):
    type: str
    bus_bits: Annotated[int, Field(gt=0)] | None = None
    variants: tuple[WrittenBytes, ...] = ()
    unified: bool = False


class _Power(Given[Watts | None]):
    range: tuple[Watts, Watts] | None = None


class _Entry(Record):
    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    title: str
    names: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    chip: str | None = None
    compute_capability: Given[Version] | None = None
    gfx: Given[str] | None = None
    multiprocessors: _Multiprocessors | None = None
    boost_clock: Given[Hertz] | None = None
    memory: _Memory
    reported_memory: Given[WrittenBytes] | None = None
    memory_bandwidth: Given[BytesPerSecond]
    l2: Given[WrittenBytes] | None = None
    last_level_cache: Given[WrittenBytes] | None = None
    dense_flops: Given[dict[str, Flops]] | None = None
    fp16_accumulate_flops: Given[dict[str, Flops]] | None = None
    nvlink: Given[BytesPerSecond] | None = None
    c2c: Given[BytesPerSecond] | None = None
    pcie: Given[Written] | None = None
    power: _Power | None = None
    min_driver_linux: Given[Version] | None = None
    max_driver_branch: Given[int] | None = None
    min_cuda: Given[Version] | None = None
    max_cuda: Given[Version] | None = None
    pci_ids: tuple[PciId, ...] = ()
    pci_source: Ids | None = None
    features: dict[str, bool] = {}
    known_issues: tuple[str, ...] = ()


class _File(Record):
    architecture: _Architecture
    sources: dict[str, SourceEntry]
    gpus: Annotated[tuple[_Entry, ...], Field(min_length=1)]


# Fields of an entry that are one value with its sources, and the field of ``GpuSpec`` each becomes.
_PLAIN = {
    "compute_capability": "compute_capability",
    "gfx": "gfx",
    "multiprocessors": "multiprocessors",
    "boost_clock": "boost_clock_hz",
    "memory": "memory_bytes",
    "reported_memory": "reported_memory_bytes",
    "memory_bandwidth": "memory_bandwidth_bytes_s",
    "l2": "l2_bytes",
    "last_level_cache": "last_level_cache_bytes",
    "nvlink": "nvlink_bytes_s",
    "c2c": "c2c_bytes_s",
    "pcie": "pcie",
    "min_driver_linux": "min_driver_linux",
    "max_driver_branch": "max_driver_branch",
    "min_cuda": "min_cuda",
    "max_cuda": "max_cuda",
}


def _spec(entry: _Entry, architecture: _Architecture, sources: Sources, index: int) -> GpuSpec:
    """One entry as a record. Raises ``SpecInvalid`` where it names a source that the file does not declare."""
    facts: dict[str, Any] = {}
    for written, field in _PLAIN.items():
        given = getattr(entry, written)
        if given is not None:
            facts[field] = sources.sourced(given, ("gpus", index, written, "source"))
    for table in ("dense_flops", "fp16_accumulate_flops"):
        given = getattr(entry, table)
        if given is not None:
            at = ("gpus", index, table, "source")
            facts[table] = {dtype: sources.value(value, given, at) for dtype, value in given.value.items()}
    if entry.power is not None and entry.power.value is not None:
        facts["tdp_w"] = sources.sourced(entry.power, ("gpus", index, "power", "source"))
    if entry.pci_source is not None:
        sources.find(entry.pci_source, ("gpus", index, "pci_source"))
    return GpuSpec(
        id=entry.id,
        title=entry.title,
        names=entry.names,
        aliases=entry.aliases,
        vendor=architecture.vendor,
        architecture=architecture.id,
        chip=entry.chip,
        multiprocessor_kind=entry.multiprocessors.kind if entry.multiprocessors else "SM",
        memory_variants_bytes=entry.memory.variants,
        unified_memory=entry.memory.unified,
        memory_type=entry.memory.type,
        memory_bus_bits=entry.memory.bus_bits,
        tdp_range_w=entry.power.range if entry.power else None,
        pci_ids=entry.pci_ids,
        features=entry.features,
        known_issues=entry.known_issues,
        sources=sources.used(),
        **facts,
    )


def read_gpus(file: Traversable) -> list[GpuSpec]:
    """The GPUs of one file. Raises ``SpecInvalid`` with file and line of what is wrong."""
    content = to_record(_File, read_yaml(file), file)
    sources = Sources(file, content.sources)
    specs = []
    for index, entry in enumerate(content.gpus):
        if entry.pci_ids and entry.pci_source is None:
            raise wrong(file, ("gpus", index, "pci_ids"), "pci_ids need pci_source")
        specs.append(_spec(entry, content.architecture, sources, index))
    return specs


@cache
def gpus() -> tuple[GpuSpec, ...]:
    """All GPUs, by architecture and file order. Raises ``SpecInvalid`` where a file of the package is damaged."""
    found: dict[str, GpuSpec] = {}
    folder = data_folder() / "gpus"
    for file in sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name):
        for spec in read_gpus(file):
            if spec.id in found:
                raise wrong(file, ("gpus",), f"GPU {spec.id!r} is there twice")
            found[spec.id] = spec
    return tuple(found.values())
