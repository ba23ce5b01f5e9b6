"""The quantization schemes, and the reason codes for what can(not) be done with them."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from model_optimizer.kb.load import data_folder, mapping, read_yaml, to_record, wrong
from model_optimizer.kb.names import unknown
from model_optimizer.kb.sources import Ids, SourceEntry, Sources
from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import Reason, SchemeSpec


class _File(Record):
    """Sources are checked as a whole, entries one by one so that each mistake has its line."""

    sources: dict[str, SourceEntry]
    schemes: tuple[dict[str, Any], ...]


class _Origin(Record):
    source: Ids


@cache
def schemes() -> tuple[SchemeSpec, ...]:
    """All schemes, in the order of the file. Raises ``SpecInvalid`` where the file of the package is damaged."""
    file = data_folder() / "schemes.yaml"
    content = to_record(_File, read_yaml(file), file)
    sources = Sources(file, content.sources)
    found: dict[str, SchemeSpec] = {}
    for index, entry in enumerate(content.schemes):
        at = ("schemes", index)
        origin = to_record(_Origin, {"source": mapping(entry, file, "source", at)}, file, at)
        sources.find(origin.source, (*at, "source"))
        facts = {key: value for key, value in entry.items() if key != "source"}
        spec = to_record(SchemeSpec, {**facts, "sources": sources.used()}, file, at)
        if spec.id in found:
            raise wrong(file, at, f"scheme {spec.id!r} is there twice")
        found[spec.id] = spec
    return tuple(found.values())


@cache
def _by_name() -> dict[str, SchemeSpec]:
    return {_plain(spec.id): spec for spec in schemes()}


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def scheme(name: str) -> SchemeSpec:
    """The scheme of that name (``Q4_K_M``, ``fp8``, ``w4a16-awq``). Raises ``UnknownName`` with the nearest names."""
    spec = _by_name().get(_plain(name))
    if spec is None:
        raise unknown("scheme", name, [s.id for s in schemes()], listed_by="(all: model-optimize schemes)")
    return spec


@cache
def reasons() -> dict[str, Reason]:
    """Every reason code with its title and fix. Raises ``SpecInvalid`` where the file of the package is damaged."""
    file = data_folder() / "reasons.yaml"
    entries = mapping(read_yaml(file), file, "reasons")
    found = [to_record(Reason, entry, file, ("reasons", index)) for index, entry in enumerate(entries)]
    return {reason.code: reason for reason in found}


def reason(code: str) -> Reason:
    """The reason of that code. Raises ``KeyError``: codes are written by us, not by users."""
    return reasons()[code]
