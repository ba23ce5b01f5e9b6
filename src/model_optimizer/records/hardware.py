"""What the machine is (read from it now), and what a GPU is (from the knowledge base)."""

from __future__ import annotations

from typing import Literal

from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import Platform, Source, Sourced


class DetectedGpu(Record):
    """One GPU as the driver reports it."""

    index: int
    name: str
    memory_bytes: int
    free_memory_bytes: int | None = None
    compute_capability: str | None = None
    driver: str | None = None
    power_limit_w: float | None = None


class HostSpec(Record):
    """This machine: what measurements depend on, and what limits a plan."""

    os: str
    kernel: str
    machine: str
    python: str
    cpu_name: str
    cpu_cores: int
    cpu_features: tuple[str, ...] = ()
    memory_bytes: int
    available_memory_bytes: int
    free_disk_bytes: int
    gpus: tuple[DetectedGpu, ...] = ()

    def identity(self) -> tuple[str, ...]:
        """The part that goes into the keys of measurements: change it, and old numbers do not speak for this host."""
        gpus = (f"{gpu.name}|{gpu.memory_bytes}|{gpu.driver}|{gpu.power_limit_w}" for gpu in self.gpus)
        return (self.machine, self.cpu_name, str(self.cpu_cores), *gpus)

    @property
    def accelerator(self) -> str:
        """``"cuda"`` where an NVIDIA GPU was found, else ``"cpu"``."""
        return "cuda" if self.gpus else "cpu"


GpuVendor = Literal["nvidia", "amd", "intel"]

# Bytes/s a PCIe lane carries in one direction after line encoding (PCI-SIG: 8b/10b before 3.0, 128b/130b up to 5.0,
# flit mode in 6.0), before protocol overhead.
PCIE_LANE_BYTES_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


class PcieLink(Record):
    """A PCIe slot connection."""

    generation: int
    lanes: int

    @property
    def bytes_s(self) -> float:
        """Bytes a second in one direction, before protocol overhead."""
        return PCIE_LANE_BYTES_S[self.generation] * self.lanes


class GpuSpec(Record):
    """A GPU as the knowledge base knows it; a GPU in this machine is a ``DetectedGpu``, and what was read there wins.

    ``names`` are what drivers print, ``aliases`` what people type. ``memory_bytes`` is the size on the label in binary
    units; ``reported_memory_bytes`` what a driver showed. ``dense_flops`` are FLOP/s (int8: OP/s) without 2:4 sparsity,
    accumulated in FP32, by input type; ``fp16_accumulate_flops`` the faster rates of GeForce boards that LLM kernels do
    not use. ``nvlink_bytes_s`` counts both directions of one GPU, as vendors do. ``features`` holds what is known.
    """

    id: str
    title: str
    names: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    vendor: GpuVendor
    architecture: str
    chip: str | None = None
    compute_capability: Sourced[str] | None = None
    gfx: Sourced[str] | None = None
    multiprocessors: Sourced[int] | None = None
    multiprocessor_kind: str = "SM"
    boost_clock_hz: Sourced[float] | None = None
    memory_bytes: Sourced[int]
    memory_variants_bytes: tuple[int, ...] = ()
    reported_memory_bytes: Sourced[int] | None = None
    unified_memory: bool = False
    memory_type: str
    memory_bus_bits: int | None = None
    memory_bandwidth_bytes_s: Sourced[float]
    l2_bytes: Sourced[int] | None = None
    last_level_cache_bytes: Sourced[int] | None = None
    dense_flops: dict[str, Sourced[float]] = {}
    fp16_accumulate_flops: dict[str, Sourced[float]] = {}
    nvlink_bytes_s: Sourced[float] | None = None
    c2c_bytes_s: Sourced[float] | None = None
    pcie: Sourced[PcieLink] | None = None
    tdp_w: Sourced[float] | None = None
    tdp_range_w: tuple[float, float] | None = None
    min_driver_linux: Sourced[str] | None = None
    max_driver_branch: Sourced[int] | None = None
    min_cuda: Sourced[str] | None = None
    max_cuda: Sourced[str] | None = None
    pci_ids: tuple[str, ...] = ()
    features: dict[str, bool] = {}
    known_issues: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def usable_memory_bytes(self) -> int:
        """What a driver showed where somebody read it, else the label: engines cannot use more."""
        return (self.reported_memory_bytes or self.memory_bytes).value

    @property
    def platform(self) -> Platform:
        """The software stack that drives it."""
        return _PLATFORM_OF[self.vendor]

    @property
    def label(self) -> str:
        """``sm 8.9`` or ``gfx942``: what kernels are built for; empty where the vendor has no such number."""
        if self.compute_capability is not None:
            return f"sm {self.compute_capability.value}"
        return self.gfx.value if self.gfx is not None else ""

    def peak_flops(self, dtype: str) -> Sourced[float] | None:
        """Dense FLOP/s of that input type, accumulated in FP32; ``None``: unknown, or no such units (``features``)."""
        return self.dense_flops.get(dtype)

    def source(self, source_id: str) -> Source:
        """The source with that id. Raises ``KeyError``."""
        for source in self.sources:
            if source.id == source_id:
                return source
        raise KeyError(source_id)


_PLATFORM_OF: dict[GpuVendor, Platform] = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu"}
