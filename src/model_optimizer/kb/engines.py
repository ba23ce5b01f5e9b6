"""The engines: what each needs, its flags and metric names. One file an engine."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.resources.abc import Traversable
from typing import Annotated, Literal

from pydantic import Field

from model_optimizer.kb.load import data_folder, read_yaml, to_record, wrong
from model_optimizer.kb.names import unknown
from model_optimizer.kb.sources import Given, SourceEntry, Sources
from model_optimizer.kb.versions import within
from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import EngineFacts, FlagFact, MissingName, OsName, Platform

Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)*[a-z0-9.]*$")]


class _File(Record):
    """An engine file: ``EngineFacts`` with the sources of its gates written as ids."""

    id: str
    title: str
    current_version: Version
    inspected_versions: tuple[Version, ...] = ()
    server: bool
    checkpoints: tuple[str, ...]
    platforms: tuple[Platform, ...]
    os: dict[OsName, str]
    python: str | None = None
    pins: dict[str, str] = {}
    cuda: str | None = None
    min_compute_capability: Given[str] | None = None
    shipped_capabilities: Given[tuple[str, ...]] | None = None
    gfx: tuple[str, ...] | None = None
    min_driver_linux: Given[str] | None = None
    install: dict[str, str] = {}
    serve: str | None = None
    default_port: int | None = None
    health_path: str | None = None
    metrics_path: str | None = None
    openai_paths: tuple[str, ...] = ()
    metrics: dict[str, str] = {}
    memory_share: Literal["total", "weights_and_kv", "free_after_weights", "bytes", "none"] = "none"
    quantization_methods: tuple[str, ...] = ()
    flags: tuple[FlagFact, ...] = ()
    missing: tuple[MissingName, ...] = ()
    notes: tuple[str, ...] = ()
    sources: dict[str, SourceEntry]


_GATES = ("min_compute_capability", "shipped_capabilities", "min_driver_linux")


def read_engine(file: Traversable) -> EngineFacts:
    """The engine of one file. Raises ``SpecInvalid`` with file and line of what is wrong."""
    content = to_record(_File, read_yaml(file), file)
    sources = Sources(file, content.sources)
    gates = {
        name: sources.sourced(getattr(content, name), (name, "source"))
        for name in _GATES
        if getattr(content, name) is not None
    }
    plain = {name: getattr(content, name) for name in _File.model_fields if name not in _GATES and name != "sources"}
    declared = tuple(entry.named(source_id) for source_id, entry in content.sources.items())
    return EngineFacts(**plain, **gates, sources=declared)


@cache
def engines() -> tuple[EngineFacts, ...]:
    """All engines, by name. Raises ``SpecInvalid`` where a file of the package is damaged."""
    folder = data_folder() / "engines"
    found: dict[str, EngineFacts] = {}
    for file in sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name):
        facts = read_engine(file)
        if facts.id in found:
            raise wrong(file, ("id",), f"engine {facts.id!r} is there twice")
        found[facts.id] = facts
    return tuple(found.values())


@cache
def _by_name() -> dict[str, EngineFacts]:
    return {_plain(facts.id): facts for facts in engines()}


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def engine(name: str) -> EngineFacts:
    """The engine of that name (letters and digits count). Raises ``UnknownName`` with the nearest names."""
    facts = _by_name().get(_plain(name))
    if facts is None:
        raise unknown("engine", name, [facts.id for facts in engines()], listed_by="(all: model-optimize engines)")
    return facts


def flag_in(facts: EngineFacts, flag: str, version: str | None = None) -> FlagFact | MissingName | None:
    """What is known of a flag in a version (default: the current one).

    A ``FlagFact``: it exists there. A ``MissingName``: it never did, or no longer does, and what to use.
    ``None``: not in the table, ask the installed engine.
    """
    wanted = version or facts.current_version
    known = facts.flag(flag)
    if known is not None and within(wanted, known.since, known.removed):
        return known
    gone = next((name for name in facts.missing if name.name == flag), None)
    if gone is None and known is not None:
        when = f"removed in {known.removed}" if known.removed else f"new in {known.since}"
        return MissingName(name=flag, why=f"not in {facts.id} {wanted}: {when}", instead=known.note)
    return gone
