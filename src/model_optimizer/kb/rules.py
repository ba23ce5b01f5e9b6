"""The rules: what an engine does with a scheme, by version and GPU. One file an engine; the first match decides."""

from __future__ import annotations

from functools import cache
from importlib.resources.abc import Traversable
from typing import Annotated, Literal

from pydantic import Field

from model_optimizer.kb.engines import Version, engines
from model_optimizer.kb.load import data_folder, read_yaml, to_record, wrong
from model_optimizer.kb.schemes import reasons, schemes
from model_optimizer.kb.sources import Ids, SourceEntry, Sources, status_of
from model_optimizer.kb.versions import version_key, within
from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import Platform, Source, StateName, Status

ANY_SCHEME = "*"


class CapabilityRange(Record):
    """``min`` ≤ compute capability < ``below``."""

    min: Version | None = None
    below: Version | None = None


class Example(Record):
    """A case that the rule decides; the tests run it. ``scheme`` defaults to the rule's first."""

    gpu: str
    scheme: str | None = None
    version: Version | None = None


class Rule(Record):
    """One rule, with its sources resolved. ``None`` conditions match everything."""

    engine: str
    schemes: tuple[str, ...]
    since: str | None
    until: str | None
    platform: Platform | None
    capability: CapabilityRange | None
    gfx: tuple[str, ...] | None
    state: StateName
    code: str
    sentence: str
    sources: tuple[Source, ...]
    status: Status
    date: str
    example: Example

    def speaks_of(self, scheme: str) -> bool:
        """True where the rule is about that scheme."""
        return scheme in self.schemes or ANY_SCHEME in self.schemes

    def matches(self, version: str, platform: Platform, capability: str | None, gfx: str | None) -> bool:
        """True where every condition holds. A condition on a property that the GPU does not have never holds."""
        if self.platform is not None and platform != self.platform:
            return False
        if self.gfx is not None and gfx not in self.gfx:
            return False
        if self.capability is not None and (
            capability is None or not within(capability, self.capability.min, self.capability.below)
        ):
            return False
        return within(version, self.since, self.until)


class _Entry(Record):
    schemes: Annotated[tuple[str, ...], Field(min_length=1)]
    since: Version | None = None
    until: Version | None = None
    platform: Platform | None = None
    capability: CapabilityRange | None = None
    gfx: tuple[str, ...] | None = None
    state: Literal["native", "emulated", "impossible"]
    code: str
    sentence: Annotated[str, Field(min_length=10)]
    source: Ids
    example: Example


class _File(Record):
    engine: str
    since: Version | None = None
    sources: dict[str, SourceEntry]
    rules: Annotated[tuple[_Entry, ...], Field(min_length=1)]


def read_rules(file: Traversable) -> list[Rule]:
    """The rules of one file. Raises ``SpecInvalid`` with file and line of what is wrong."""
    content = to_record(_File, read_yaml(file), file)
    if content.engine not in {facts.id for facts in engines()}:
        raise wrong(file, ("engine",), f"there is no engine {content.engine!r}")
    known = {spec.id for spec in schemes()} | {ANY_SCHEME}
    sources = Sources(file, content.sources)
    found = []
    for index, entry in enumerate(content.rules):
        at = ("rules", index)
        for name in entry.schemes:
            if name not in known:
                raise wrong(file, (*at, "schemes"), f"there is no scheme {name!r}")
        if entry.code not in reasons() or reasons()[entry.code].state != entry.state:
            raise wrong(file, (*at, "code"), f"{entry.code!r} is no reason for {entry.state!r} (data/reasons.yaml)")
        origin = sources.find(entry.source, (*at, "source"))
        found.append(
            Rule(
                engine=content.engine,
                since=entry.since or content.since,
                sources=tuple(origin),
                status=status_of(origin),
                date=max(source.read for source in origin),
                **entry.model_dump(exclude={"since", "source", "capability", "example"}),
                capability=entry.capability,
                example=entry.example,
            )
        )
    return found


@cache
def rules() -> dict[str, tuple[Rule, ...]]:
    """All rules by engine. Raises ``SpecInvalid`` where a file of the package is damaged."""
    folder = data_folder() / "rules"
    found: dict[str, tuple[Rule, ...]] = {}
    for file in sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name):
        read = tuple(read_rules(file))
        found[read[0].engine] = read
    return found


@cache
def rules_for(engine: str, scheme: str) -> tuple[Rule, ...]:
    """The engine's rules about that scheme, in order."""
    return tuple(rule for rule in rules().get(engine, ()) if rule.speaks_of(scheme))


@cache
def oldest_known(engine: str) -> str | None:
    """The oldest version that any rule of the engine speaks about; ``None``: rules without a version limit."""
    floors = [rule.since for rule in rules().get(engine, ())]
    known = [floor for floor in floors if floor is not None]
    return min(known, key=version_key) if known and len(known) == len(floors) else None
