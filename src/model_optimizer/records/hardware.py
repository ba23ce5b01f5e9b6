"""What the machine is: facts read from it now."""

from __future__ import annotations

from model_optimizer.records.base import Record


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
