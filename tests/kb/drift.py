"""The shipped table of an engine against what an installation of it says: every difference as a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from model_optimizer.kb.rules import rules_for
from model_optimizer.kb.schemes import schemes
from model_optimizer.kb.versions import at_least, within
from model_optimizer.records.knowledge import EngineFacts, FlagFact, InstalledEngine, SchemeSpec

CAPABILITIES = ("6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")

# Schemes that share a method and differ in what they need: the class of compressed-tensors that decides.
VARIANTS = {
    "w4a16": "wna16",
    "w8a16": "wna16",
    "w8a8-int8": "w8a8_int8",
    "w4a8-fp8": "w4a8_fp8",
    "w4a8-int8": "w4a8_int",
}


def drift(facts: EngineFacts, installed: InstalledEngine) -> list[str]:
    """All differences: flags, defaults, values, names said to be missing, methods, minimum capabilities."""
    return [
        *_flags(facts, installed),
        *_missing(facts, installed),
        *_methods(facts, installed),
        *_capabilities(facts, installed),
    ]


def _flags(facts: EngineFacts, installed: InstalledEngine) -> Iterator[str]:
    for fact in facts.flags:
        names = fact.flag.split(" / ")
        here = [name for name in names if name in installed.flags]
        there = within(installed.version, fact.since, fact.removed)
        if there and len(here) < len([name for name in names if name.startswith("--")]):
            yield f"{fact.flag}: in the table, not in the installed {installed.version}"
        elif not there and here:
            span = f"since {fact.since}, removed {fact.removed}"
            yield f"{fact.flag}: the table says {span}, but {installed.version} has it"
        elif here:
            found = installed.flag(names[-1])
            assert found is not None
            yield from _details(fact, found)


def _details(fact: FlagFact, found: FlagFact) -> Iterator[str]:
    if fact.field is not None and fact.field != found.field:
        yield f"{fact.flag}: field {fact.field} in the table, {found.field} in the installation"
    if not _same_default(fact.default, found.default):
        yield f"{fact.flag}: default {fact.default!r} in the table, {found.default!r} in the installation"
    if fact.alias is not None and fact.alias not in (found.alias or "").split(" / "):
        yield f"{fact.flag}: alias {fact.alias} is not in the installation"
    if isinstance(fact.values, tuple) and isinstance(found.values, tuple):
        ours, theirs = {str(v) for v in fact.values}, {str(v) for v in found.values}
        if ours != theirs:
            yield f"{fact.flag}: only in the table {sorted(ours - theirs)}, only installed {sorted(theirs - ours)}"


def _same_default(said: object, found: object) -> bool:
    """Prose (a text of several words) describes what an unset flag resolves to; ``{}`` is an empty configuration.

    A flag that the parser leaves unset may resolve to the stated value when the engine starts (block size on CPUs).
    """
    if said is None or found is None:
        return True
    if isinstance(said, str) and " " in said:
        return False
    if said == "{}":
        return str(found).endswith("Config") or found == "{}"
    return str(said).lower() == str(found).lower() or _number(said) == _number(found) is not None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _missing(facts: EngineFacts, installed: InstalledEngine) -> Iterator[str]:
    for name in facts.missing:
        flag = name.name.split()[0]
        if flag.startswith("--") and flag in installed.flags:
            yield f"{flag}: said to be missing, but {installed.version} has it"
        if name.instead.startswith("--") and name.instead.split()[0] not in installed.flags:
            yield f"{name.instead}: named instead of {name.name}, but {installed.version} does not have it"


def _methods(facts: EngineFacts, installed: InstalledEngine) -> Iterator[str]:
    ours, theirs = set(facts.quantization_methods), set(installed.methods)
    for method in sorted(ours - theirs):
        yield f"method {method}: in the table, not in the installed {installed.version}"
    for method in sorted(theirs - ours):
        yield f"method {method}: installed, not in the table"
    for spec in schemes():
        wanted = spec.methods.get(facts.id)
        known = set(installed.kv_cache_dtypes) if spec.kind == "kv_cache" else theirs
        if wanted is not None and wanted not in known and _claimed(facts, spec, installed.version):
            yield f"scheme {spec.id}: its method {wanted} is not installed, yet the rules say that it runs"


def _claimed(facts: EngineFacts, spec: SchemeSpec, version: str) -> bool:
    return any(
        rule.state in ("native", "emulated") and within(version, rule.since, rule.until)
        for rule in rules_for(facts.id, spec.id)
    )


def _capabilities(facts: EngineFacts, installed: InstalledEngine) -> Iterator[str]:
    """The rules must neither promise what the installation refuses nor refuse for a capability that it accepts."""
    for spec in schemes():
        method, variant = spec.methods.get(facts.id), VARIANTS.get(spec.id)
        floor = installed.variants.get(variant) if variant is not None else installed.methods.get(method or "")
        if method is None or floor is None or spec.kind == "kv_cache":
            continue
        for capability in CAPABILITIES:
            if facts.min_compute_capability and not at_least(capability, facts.min_compute_capability.value):
                continue  # ruled out before any scheme is looked at
            rule = next(
                (r for r in rules_for(facts.id, spec.id) if r.matches(installed.version, "cuda", capability, None)),
                None,
            )
            if rule is None:
                continue
            if rule.state in ("native", "emulated") and not at_least(capability, floor):
                yield f"{spec.id} on {capability}: {rule.state} in the rules, but the installation wants {floor}"
            if rule.code == "CAPABILITY_TOO_LOW" and at_least(capability, floor):
                yield f"{spec.id} on {capability}: refused by the rules, but the installation is content with {floor}"
