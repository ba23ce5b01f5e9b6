"""Native, emulated or impossible: what an engine does with a scheme on a GPU, with the reason and its source.

Asked in this order: operating system, device, format, what the engine needs at all (driver, compute capability, code in
the package), then the engine's rules. Only vendor and measured sources refuse; where only the community says no, the
answer is *unknown* with what they say.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from model_optimizer.kb.compat import compat, dropped_in
from model_optimizer.kb.engines import engine as find_engine
from model_optimizer.kb.engines import engines
from model_optimizer.kb.find import gpu as find_gpu
from model_optimizer.kb.rules import Rule, oldest_known, rules_for
from model_optimizer.kb.schemes import reason
from model_optimizer.kb.schemes import scheme as find_scheme
from model_optimizer.kb.versions import at_least, version_key
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import (
    EngineFacts,
    InstalledEngine,
    OsName,
    Platform,
    SchemeSpec,
    Source,
    Sourced,
    State,
    StateName,
    Status,
)

CPU: Literal["cpu"] = "cpu"
_OS_REFUSALS = ("no ", "no;")  # how an engine file says that it does not run there


class _Refusal(NamedTuple):
    """Why not, before the scheme is put into the sentence."""

    code: str
    sentence: str
    sources: tuple[Source, ...]
    status: Status


class _Case:
    """One question: the facts about both sides, and how to answer."""

    def __init__(self, scheme: SchemeSpec, engine: EngineFacts, gpu: GpuSpec | None, version: str, os: OsName) -> None:
        self.scheme, self.engine, self.gpu, self.version, self.os = scheme, engine, gpu, version, os
        self.platform: Platform = gpu.platform if gpu is not None else CPU
        self.capability = gpu.compute_capability.value if gpu is not None and gpu.compute_capability else None
        self.gfx = gpu.gfx.value if gpu is not None and gpu.gfx else None
        self.gpu_title = gpu.title if gpu is not None else "the CPU"

    def answer(
        self, code: str, sentence: str, sources: tuple[Source, ...], status: Status, state: StateName | None = None
    ) -> State:
        """The state for a reason code; a refusal on community's word alone becomes *unknown*."""
        named = state or reason(code).state
        text = sentence.format(
            gpu=self.gpu_title,
            capability=self.capability or "unknown",
            engine=self.engine.title,
            version=self.version,
            scheme=self.scheme.id,
        )
        if named == "impossible" and status == "community":
            named, text = "unknown", f"Reported, not confirmed: {text}"
        return State(
            scheme=self.scheme.id,
            engine=self.engine.id,
            gpu=self.gpu.id if self.gpu is not None else CPU,
            version=self.version,
            state=named,
            code=code,
            sentence=text,
            sources=sources,
            date=max((source.read for source in sources), default=""),
            status=status,
        )


def _by_engine(
    engine: EngineFacts, code: str, sentence: str, fact: Sourced[str] | Sourced[tuple[str, ...]] | None = None
) -> _Refusal:
    """A refusal by what the engine file says; ``fact`` names its sources, else the file's first source speaks."""
    if fact is None:
        return _Refusal(code, sentence, engine.sources[:1], "vendor")
    sources = tuple(source for source in engine.sources if source.id in fact.sources)
    return _Refusal(code, sentence, sources, fact.status)


def _gates(case: _Case, driver: str | None) -> Iterator[_Refusal]:
    """What rules the engine out before any scheme is looked at, most telling first."""
    engine, gpu = case.engine, case.gpu
    where = engine.os.get(case.os)
    if where is not None and where.startswith(_OS_REFUSALS):
        yield _by_engine(case.engine, "OS_UNSUPPORTED", f"{{engine}} does not run on {case.os}: {where}.")
    if case.platform not in engine.platforms:
        runs = ", ".join(engine.platforms)
        yield _by_engine(case.engine, "PLATFORM_UNSUPPORTED", f"{{engine}} runs on {runs}; {{gpu}} is {case.platform}.")
    if gpu is None or not _inspected(engine, case.version):
        return
    if case.platform == "rocm" and engine.gfx and not (case.gfx or "").startswith(tuple(engine.gfx)):
        sentence = f"{{engine}} has code paths for {', '.join(engine.gfx)}; {{gpu}} is {case.gfx}."
        yield _by_engine(case.engine, "ARCHITECTURE_NOT_SHIPPED", sentence)
    if case.platform == "cuda" and case.capability is not None:
        yield from _cuda_gates(case, case.capability, driver)


def _cuda_gates(case: _Case, capability: str, driver: str | None) -> Iterator[_Refusal]:
    floor, shipped, oldest = (
        case.engine.min_compute_capability,
        case.engine.shipped_capabilities,
        case.engine.min_driver_linux,
    )
    if floor is not None and not at_least(capability, floor.value):
        sentence = f"{{engine}} {{version}} needs compute capability {floor.value}; {{gpu}} has {{capability}}."
        yield _by_engine(case.engine, "CAPABILITY_TOO_LOW", sentence, floor)
    if shipped is not None and not any(_runs_code(capability, built) for built in shipped.value):
        sentence = f"The package holds code for {', '.join(shipped.value)}; {{gpu}} has {{capability}}."
        yield _by_engine(case.engine, "ARCHITECTURE_NOT_SHIPPED", sentence, shipped)
    gone = dropped_in(capability)
    if gone is not None and case.engine.cuda is not None and at_least(case.engine.cuda, gone):
        notes = tuple(source for source in compat().sources if source.id == "cuda-13-notes")
        sentence = (
            f"CUDA {gone} dropped compute capability {{capability}}, and {{engine}} is built for {case.engine.cuda}."
        )
        yield _Refusal("CUDA_DROPPED_ARCHITECTURE", sentence, notes, "vendor")
    if driver is not None and case.os == "linux" and oldest is not None and not at_least(driver, oldest.value):
        sentence = f"{{engine}} {{version}} needs driver {oldest.value} ({oldest.note}); this machine has {driver}."
        yield _by_engine(case.engine, "DRIVER_TOO_OLD", sentence, oldest)


def _runs_code(capability: str, built: str) -> bool:
    """Code built for X.y runs on X.z with z ≥ y (CUDA programming guide: binary compatibility)."""
    have, code = version_key(capability), version_key(built)
    return have[0] == code[0] and have >= code


def _inspected(engine: EngineFacts, version: str) -> bool:
    """True where the file's gates speak about that version: not older than the oldest release that was read."""
    return not engine.inspected_versions or at_least(version, min(engine.inspected_versions, key=version_key))


def _by_rule(case: _Case, rule: Rule) -> State:
    return case.answer(rule.code, rule.sentence, rule.sources, rule.status, rule.state)


def _matching(case: _Case) -> Rule | None:
    """The first rule that decides this case."""
    for rule in rules_for(case.engine.id, case.scheme.id):
        if rule.matches(case.version, case.platform, case.capability, case.gfx):
            return rule
    return None


def _unreadable(case: _Case) -> State | None:
    """A refusal where the engine does not read the scheme's kind of file (of older versions we do not know)."""
    known = ("any", *case.engine.checkpoints)
    if case.scheme.checkpoint in known or not _inspected(case.engine, case.version):
        return None
    reads = ", ".join(case.engine.checkpoints)
    sentence = f"{{engine}} reads {reads} checkpoints; {{scheme}} is stored as {case.scheme.checkpoint}."
    return case.answer(*_by_engine(case.engine, "FORMAT_UNKNOWN", sentence))


def _unknown(case: _Case) -> State:
    oldest = oldest_known(case.engine.id)
    if oldest is not None and not at_least(case.version, oldest):
        sentence = f"Nothing is known about {{engine}} {{version}}: the table begins with {oldest}."
    else:
        sentence = "No source says what {engine} {version} does with {scheme} on {gpu}."
    return case.answer("NOT_ESTABLISHED", sentence, (), "community")


@lru_cache(maxsize=8192)
def _gate(engine: str, gpu: str, version: str, os: OsName, driver: str | None) -> _Refusal | None:
    """The most telling gate that is shut, whatever the scheme."""
    return next(_gates(_case(_ANY, find_engine(engine), gpu, version, os), driver), None)


_ANY = "fp16"  # gates do not look at the scheme; any will do


def _case(scheme: str, engine: EngineFacts, gpu: str, version: str | None, os: OsName) -> _Case:
    spec = None if gpu == CPU else find_gpu(gpu)
    return _Case(find_scheme(scheme), engine, spec, version or engine.current_version, os)


@lru_cache(maxsize=65536)
def _state(scheme: str, engine: str, gpu: str, version: str | None, os: OsName, driver: str | None) -> State:
    case = _case(scheme, find_engine(engine), gpu, version, os)
    gate = _gate(case.engine.id, gpu, case.version, os, driver)
    if gate is not None and gate.code in ("OS_UNSUPPORTED", "PLATFORM_UNSUPPORTED"):
        return case.answer(*gate)
    rule = _matching(case)
    if rule is not None and rule.code.startswith("FORMAT_"):  # a format that is gone says more than a GPU too old
        return _by_rule(case, rule)
    if gate is not None:
        return case.answer(*gate)
    return _unreadable(case) or (_by_rule(case, rule) if rule is not None else _unknown(case))


def state(
    scheme: str,
    engine: str,
    gpu: str,
    version: str | None = None,
    *,
    os: OsName = "linux",
    driver: str | None = None,
    installed: InstalledEngine | None = None,
) -> State:
    """What ``engine`` does with ``scheme`` on ``gpu``: native, emulated, impossible or unknown, and why.

    ``gpu`` is a name or ``cpu``; ``version`` defaults to the engine's current one; ``driver`` (Linux) is checked where
    given. What an installation says about itself (``installed``) wins over the table: its version, the methods it has,
    and the capability each needs. Raises ``UnknownName`` for a scheme, engine or GPU that is not known.
    """
    if installed is not None:
        version = installed.version
    answer = _state(scheme, engine, gpu, version, os, driver)
    return answer if installed is None else _as_installed(answer, installed)


def _as_installed(answer: State, installed: InstalledEngine) -> State:
    """The answer corrected by what the installation says."""
    spec = find_scheme(answer.scheme)
    method = spec.methods.get(answer.engine)
    if method is None or answer.code in ("OS_UNSUPPORTED", "PLATFORM_UNSUPPORTED", "DRIVER_TOO_OLD"):
        return answer
    case = _case(answer.scheme, find_engine(answer.engine), answer.gpu, installed.version, "linux")
    title = f"{case.engine.title} {installed.version}, as installed"
    read = Source(id="installed", title=title, read=installed.read, status="measured")
    if spec.kind == "kv_cache":
        if not installed.kv_cache_dtypes or method in installed.kv_cache_dtypes:
            return answer
        sentence = f"The installed {{engine}} {{version}} has no KV cache of type {method!r}."
        return case.answer("FORMAT_UNKNOWN", sentence, (read,), "measured")
    if method not in installed.methods:
        sentence = f"The installed {{engine}} {{version}} has no method {method!r}."
        return case.answer("FORMAT_UNKNOWN", sentence, (read,), "measured")
    floor = installed.methods[method]
    if floor is not None and case.capability is not None and not at_least(case.capability, floor):
        sentence = f"The installed {{engine}} {{version}} wants compute capability {floor}; {{gpu}} has {{capability}}."
        return case.answer("CAPABILITY_TOO_LOW", sentence, (read,), "measured")
    return answer


def gates(
    engine: str, gpu: str, version: str | None = None, *, os: OsName = "linux", driver: str | None = None
) -> tuple[State, ...]:
    """Everything that keeps ``engine`` from running on ``gpu`` at all, whatever the scheme; empty: nothing does."""
    case = _case(_ANY, find_engine(engine), gpu, version, os)
    return tuple(case.answer(*refusal) for refusal in _gates(case, driver))


def too_old_for(gpu: str) -> tuple[State, ...]:
    """The engines whose current version this GPU is too old for, with the reason of each."""
    old = ("CAPABILITY_TOO_LOW", "ARCHITECTURE_NOT_SHIPPED", "CUDA_DROPPED_ARCHITECTURE")
    found = []
    for facts in engines():
        first = next((gate for gate in gates(facts.id, gpu) if gate.state == "impossible"), None)
        if first is not None and first.code in old:
            found.append(first)
    return tuple(found)
