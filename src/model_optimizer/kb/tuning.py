"""The parameters that may be tuned: one file an engine; what of them this version, machine and model has."""

from __future__ import annotations

import math
from functools import cache
from importlib.resources.abc import Traversable
from typing import Annotated, NamedTuple

from pydantic import Field

from model_optimizer.errors import UnknownName
from model_optimizer.kb.engines import Version
from model_optimizer.kb.load import data_folder, read_yaml, to_record, wrong
from model_optimizer.kb.names import nearest
from model_optimizer.kb.sources import SourceEntry
from model_optimizer.kb.versions import at_least, within
from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import InstalledEngine, Platform
from model_optimizer.records.tuning import Parameter, Scalar, Settings, Space

GIB = 2**30
_OURS = frozenset({"omp_wait_policy", "n_threads"})  # workers/llama_cpp_server.py takes them by these names


class Cores(Record):
    """Multiples of the cores that may be used, rounded up."""

    cores: tuple[float, ...] | float


class Default(Record):
    """What the engine takes where the conditions hold; ``not_on``: words of the GPU's name that it excepts."""

    value: Scalar | Cores
    min_memory_gib: float | None = None
    not_on: tuple[str, ...] = ()


class Tunable(Record):
    """One parameter as a file writes it. ``searched``: part of the default space; else only by name.

    ``changes_quality`` ones are never part of it: the accuracy gate judged the engine's own setting.
    """

    name: str
    values: Annotated[tuple[Scalar, ...], Field(min_length=1)] | Cores
    defaults: tuple[Default, ...] = ()
    is_ordered: bool = True
    searched: bool = True
    changes_quality: bool = False
    needs: Settings = {}
    since: Version | None = None
    until: Version | None = None
    platforms: tuple[Platform, ...] = ()
    min_capability: Version | None = None
    min_gpus: int = 1
    needs_experts: bool = False
    effect: str
    source: str


class Constraint(Record):
    """``left`` ≥ ``at_least`` (a parameter, or ``max_model_len``), where the settings in ``when`` hold."""

    left: str
    at_least: str
    when: Settings = {}
    why: str


class EngineTuning(Record):
    """One engine's file."""

    engine: str
    parameters: tuple[Tunable, ...]
    constraints: tuple[Constraint, ...] = ()
    sources: dict[str, SourceEntry]


class Place(NamedTuple):
    """Where the engine would run: what conditions and defaults are about."""

    platform: Platform
    cores: int
    max_model_len: int
    num_gpus: int = 0
    gpu_memory_bytes: int = 0
    capability: str | None = None
    has_experts: bool = False
    gpu_name: str = ""


def read_tuning(file: Traversable) -> EngineTuning:
    """One file. Raises ``SpecInvalid`` with file and line of what is wrong."""
    content = to_record(EngineTuning, read_yaml(file), file)
    names = [p.name for p in content.parameters]
    for at, parameter in enumerate(content.parameters):
        if parameter.source not in content.sources:
            raise wrong(file, ("parameters", at, "source"), f"no source {parameter.source!r} in this file")
        if names.count(parameter.name) > 1:
            raise wrong(file, ("parameters", at, "name"), f"{parameter.name} is there twice")
        for name in parameter.needs:
            if name not in names:
                raise wrong(file, ("parameters", at, "needs"), f"no parameter {name!r} in this file")
    for at, constraint in enumerate(content.constraints):
        for name in (constraint.left, constraint.at_least, *constraint.when):
            if name not in (*names, "max_model_len"):
                raise wrong(file, ("constraints", at), f"no parameter {name!r} in this file")
    return content


@cache
def tunings() -> dict[str, EngineTuning]:
    """Every engine's parameters by the engine's id."""
    found = (read_tuning(file) for file in sorted((data_folder() / "tuning").iterdir(), key=lambda f: f.name))
    return {tuning.engine: tuning for tuning in found}


def parameters(
    engine: str, version: str, place: Place, *, installed: InstalledEngine | None = None, names: tuple[str, ...] = ()
) -> Space:
    """What may be searched here: the default space, or exactly ``names``; what was left out, with the reason.

    Raises ``UnknownName`` where ``names`` holds one that the engine's file does not have.
    """
    tuning = tunings().get(engine)
    if tuning is None:
        return Space(engine=engine, version=version, parameters=(), left_out={"all": f"no data on tuning {engine}"})
    known = [p.name for p in tuning.parameters]
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise UnknownName(
                f"{engine} has no parameter {name!r} that we know how to tune",
                cause=f"known: {', '.join(known)}",
                fix=f"did you mean {near[0]}?" if near else "take one of these",
            )
    kept, left_out = [], {}
    for parameter in tuning.parameters:
        reason = _why_not(parameter, version, place, installed, names)
        if reason is None:
            kept.append(_resolved(parameter, place))
        else:
            left_out[parameter.name] = reason
    return Space(engine=engine, version=version, parameters=tuple(kept), left_out=left_out)


def invalid(engine: str, settings: Settings, place: Place) -> str | None:
    """Why these settings cannot be together; ``None``: nothing is known against them. Defaults fill what is not set."""
    tuning = tunings().get(engine)
    if tuning is None:
        return None
    values: dict[str, Scalar | None] = {p.name: default_of(p, place) for p in tuning.parameters}
    values |= {**settings, "max_model_len": place.max_model_len}
    for parameter in tuning.parameters:
        if parameter.name in settings and settings[parameter.name] != default_of(parameter, place):
            unmet = {n: v for n, v in parameter.needs.items() if values.get(n) != v}
            if unmet:
                return f"{parameter.name} needs " + ", ".join(f"{n} = {v}" for n, v in unmet.items())
    for constraint in tuning.constraints:
        if any(values.get(name) != wanted for name, wanted in constraint.when.items()):
            continue
        left, right = values.get(constraint.left), values.get(constraint.at_least)
        if isinstance(left, int | float) and isinstance(right, int | float) and left < right:
            return f"{constraint.left} = {left} is below {constraint.at_least} = {right}: {constraint.why}"
    return None


def default_of(parameter: Tunable, place: Place) -> Scalar | None:
    """What the engine takes here when it is not told; ``None``: it decides at start."""
    for default in parameter.defaults:
        if default.min_memory_gib is not None and place.gpu_memory_bytes < default.min_memory_gib * GIB:
            continue
        if any(word.lower() in place.gpu_name.lower() for word in default.not_on):
            continue
        return _cores(default.value, place.cores)[0] if isinstance(default.value, Cores) else default.value
    return None


def _why_not(
    parameter: Tunable, version: str, place: Place, installed: InstalledEngine | None, names: tuple[str, ...]
) -> str | None:
    if not within(version, parameter.since, parameter.until):
        return f"not in {version}"
    if parameter.platforms and place.platform not in parameter.platforms:
        return f"not on {place.platform}"
    if place.num_gpus < parameter.min_gpus and parameter.min_gpus > 1:
        return f"needs {parameter.min_gpus} GPUs"
    if parameter.needs_experts and not place.has_experts:
        return "the model has no experts"
    if parameter.min_capability is not None and (
        place.capability is None or not at_least(place.capability, parameter.min_capability)
    ):
        return f"needs compute capability {parameter.min_capability}"
    if installed is not None and installed.flags and not _is_installed(parameter.name, installed):
        return f"the installed {installed.version} does not have it"
    if names:
        return None if parameter.name in names else "not asked for"
    if parameter.changes_quality:
        return "changes what the model says: ask for it by name, and validate the result"
    return None if parameter.searched else "rarely pays: ask for it by name"


def _is_installed(name: str, installed: InstalledEngine) -> bool:
    """Environment variables (capitals) and what our worker adds are not among the engine's own names."""
    spellings = {name, f"--{name.replace('_', '-')}"}
    return name.isupper() or name in _OURS or bool(spellings & set(installed.flags))


def _resolved(parameter: Tunable, place: Place) -> Parameter:
    values = parameter.values
    resolved = _cores(values, place.cores) if isinstance(values, Cores) else values
    return Parameter(
        name=parameter.name,
        values=resolved,
        default=default_of(parameter, place),
        is_ordered=parameter.is_ordered,
        needs=parameter.needs,
        effect=parameter.effect,
        source=parameter.source,
    )


def _cores(wanted: Cores, cores: int) -> tuple[Scalar, ...]:
    shares = wanted.cores if isinstance(wanted.cores, tuple) else (wanted.cores,)
    return tuple(dict.fromkeys(max(1, math.ceil(share * cores)) for share in shares))
