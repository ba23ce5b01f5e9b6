"""What a tool environment is made of: data shipped with the package (``tools/tools.yaml`` and the locks beside it)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from model_optimizer.kb.load import mapping, read_yaml, to_record
from model_optimizer.records.base import Record
from model_optimizer.units import Bytes, Seconds


class Build(Record):
    """How a tool is installed on one platform. Sizes and time are for telling people before they wait."""

    lock: str
    download: Bytes
    installed: Bytes
    build_time: Seconds

    def requirements(self) -> tuple[str, ...]:
        """The lines of the lock, every package pinned; comments left out."""
        text = (files("model_optimizer.host") / "tools" / "locks" / self.lock).read_text(encoding="utf-8")
        return requirements(text)


class ToolSpec(Record):
    """A tool: what it is for, which distribution carries its version, how to see that it works, how to build it."""

    name: str
    purpose: str
    packages: tuple[str, ...]
    check: str
    builds: dict[str, Build]

    def build_for(self, platform: str) -> tuple[str, Build]:
        """The platform whose build is used, and the build: a tool that needs no GPU has one for ``cpu`` only."""
        chosen = platform if platform in self.builds else "cpu"
        return chosen, self.builds[chosen]


def requirements(text: str) -> tuple[str, ...]:
    """The requirements of a lock file's text, one a line, without comments."""
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


@cache
def tool_specs() -> dict[str, ToolSpec]:
    """Every tool by name, in the order of the file. Raises ``SpecInvalid`` where an entry is wrong."""
    file = files("model_optimizer.host") / "tools" / "tools.yaml"
    entries = mapping(read_yaml(file), file, "tools")
    specs = [to_record(ToolSpec, entry, file, ("tools", index)) for index, entry in enumerate(entries)]
    return {spec.name: spec for spec in specs}
