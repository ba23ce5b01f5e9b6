"""Which quantization to try first on a GPU: an order for what is about equally good, never a refusal."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from model_optimizer.kb.engines import engines
from model_optimizer.kb.load import data_folder, read_yaml, to_record, wrong
from model_optimizer.kb.rules import CapabilityRange
from model_optimizer.kb.schemes import schemes
from model_optimizer.kb.sources import Ids, SourceEntry, Sources
from model_optimizer.kb.versions import within
from model_optimizer.records.base import Record
from model_optimizer.records.fleet import Rung
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import Platform


class _Rung(Record):
    schemes: Annotated[tuple[str, ...], Field(min_length=1)]
    engines: tuple[str, ...] = ()
    why: Annotated[str, Field(min_length=5)]
    source: Ids


class _Generation(Record):
    id: str
    title: str
    platform: Platform
    capability: CapabilityRange | None = None
    rungs: Annotated[tuple[_Rung, ...], Field(min_length=1)]


class _File(Record):
    sources: dict[str, SourceEntry]
    engines: tuple[str, ...]
    last_resort: tuple[str, ...]
    generations: Annotated[tuple[_Generation, ...], Field(min_length=1)]


@cache
def _read() -> tuple[_File, Sources]:
    file = data_folder() / "ladder.yaml"
    content = to_record(_File, read_yaml(file), file)
    known_schemes, known_engines = {s.id for s in schemes()}, {e.id for e in engines()}
    sources = Sources(file, content.sources)
    for row, generation in enumerate(content.generations):
        for index, rung in enumerate(generation.rungs):
            at = ("generations", row, "rungs", index)
            sources.find(rung.source, (*at, "source"))
            for name in (*rung.schemes, *rung.engines):
                if name not in known_schemes | known_engines:
                    raise wrong(file, at, f"there is no scheme or engine {name!r}")
    return content, sources


@cache
def _rungs(platform: Platform, capability: str | None) -> tuple[Rung, ...]:
    content, sources = _read()
    for generation in content.generations:
        limits = generation.capability
        fits = limits is None or (capability is not None and within(capability, limits.min, limits.below))
        if generation.platform == platform and fits:
            return tuple(
                Rung(
                    number=number,
                    generation=generation.title,
                    schemes=entry.schemes,
                    engines=entry.engines,
                    why=entry.why,
                    sources=tuple(sources.find(entry.source, ())),
                )
                for number, entry in enumerate(generation.rungs, 1)
            )
    return ()


def rungs(gpu: GpuSpec) -> tuple[Rung, ...]:
    """The rungs for this GPU's generation, first to last; empty where the table does not know it."""
    return _rungs(gpu.platform, gpu.compute_capability.value if gpu.compute_capability is not None else None)


def rung(gpu: GpuSpec, engine: str, scheme: str) -> Rung | None:
    """The first rung for this GPU that names the scheme (and engine); ``None``: the table has no place for it."""
    return next((r for r in rungs(gpu) if scheme in r.schemes and (not r.engines or engine in r.engines)), None)


def engine_rank(engine: str) -> int:
    """Place of the engine among those that are about equal; engines that are not listed come last."""
    order = _read()[0].engines
    return order.index(engine) if engine in order else len(order)


def last_resort() -> frozenset[str]:
    """Schemes that are offered only when asked for by name, or when nothing else fits."""
    return frozenset(_read()[0].last_resort)
