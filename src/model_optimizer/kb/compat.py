"""Drivers, CUDA toolkits and compute capabilities: which works with which."""

from __future__ import annotations

from functools import cache

from model_optimizer.kb.load import data_folder, read_yaml, to_record
from model_optimizer.kb.sources import SourceEntry
from model_optimizer.kb.versions import at_least, version_key
from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import CompatFacts, ToolkitDriver


class _File(Record):
    sources: dict[str, SourceEntry]
    toolkits: tuple[ToolkitDriver, ...]
    min_driver_of_major: dict[str, str]
    introduced_in: dict[str, str]
    dropped_in: dict[str, str]
    last_driver_branch: dict[str, int]
    torch_wheel_cuda: dict[str, str]
    torch_wheel_capabilities: dict[str, tuple[str, ...]]
    notes: dict[str, str] = {}


@cache
def compat() -> CompatFacts:
    """The compatibility tables. Raises ``SpecInvalid`` where the file of the package is damaged."""
    file = data_folder() / "compat.yaml"
    content = to_record(_File, read_yaml(file), file)
    tables = {name: getattr(content, name) for name in _File.model_fields if name != "sources"}
    return CompatFacts(**tables, sources=tuple(entry.named(name) for name, entry in content.sources.items()))


def paired_driver(cuda: str, os: str = "linux") -> str | None:
    """The driver NVIDIA pairs with that toolkit: the floor for every feature. ``None``: not in the table."""
    row = next((row for row in compat().toolkits if version_key(row.cuda) == version_key(cuda)), None)
    if row is None:
        return None
    return row.windows if os == "windows" else row.linux


def min_driver(cuda: str) -> str | None:
    """The oldest Linux driver on which a program built for that CUDA version starts (minor-version compatibility)."""
    return compat().min_driver_of_major.get(str(version_key(cuda)[0]))


def driver_runs(driver: str, cuda: str) -> bool | None:
    """True where that Linux driver starts programs of that CUDA version; ``None`` where no source says."""
    floor = min_driver(cuda)
    return None if floor is None else at_least(driver, floor)


def newest_cuda(driver: str) -> str | None:
    """The newest toolkit of the table whose paired Linux driver is not newer than this one."""
    fitting = [row.cuda for row in compat().toolkits if row.linux is not None and at_least(driver, row.linux)]
    return max(fitting, key=version_key, default=None)


def cuda_knows(cuda: str, capability: str) -> bool | None:
    """True where that toolkit can build for that compute capability; ``None`` where no source says."""
    facts = compat()
    since = facts.introduced_in.get(capability)
    until = dropped_in(capability)
    if since is None and until is None:
        return None
    return (since is None or at_least(cuda, since)) and (until is None or not at_least(cuda, until))


def dropped_in(capability: str) -> str | None:
    """The first CUDA toolkit that cannot build for that compute capability any more; ``None``: it still can."""
    facts = compat()
    return facts.dropped_in.get(capability) or facts.dropped_in.get(capability.split(".")[0])
