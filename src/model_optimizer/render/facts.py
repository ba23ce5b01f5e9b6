"""The long tail of a report: answers side by side, the request with the origin of each value, how to run it again."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import yaml

from model_optimizer.records.measurement import Generation
from model_optimizer.records.run import Origin, RunManifest
from model_optimizer.render.chart import limit_words
from model_optimizer.render.series import Series
from model_optimizer.render.words import flattened

REPRODUCE_WITHOUT: frozenset[str] = frozenset({"origin"})


@dataclass(frozen=True)
class Answer:
    """The reference's and a candidate's answer to one prompt; ``shared`` is what both begin with."""

    prompt: str
    shared: str
    reference_rest: str
    candidate_rest: str
    reference: Generation | None
    candidate: Generation

    @property
    def identical(self) -> bool:
        """True where the candidate answered word for word as the reference."""
        return self.reference is not None and self.reference.text == self.candidate.text


@dataclass(frozen=True)
class RequestValue:
    """One value of the request and who chose it."""

    name: str
    value: str
    origin: Origin


def answers(manifest: RunManifest, series: Series) -> tuple[Answer, ...]:
    """A candidate's answers beside the reference's: those with a problem first, then those that differ."""
    if series.accuracy is None:
        return ()
    stored = manifest.baseline.reference.generations if manifest.baseline and manifest.baseline.reference else ()
    references = {g.prompt: g for g in (*stored, *series.accuracy.reference_generations)}
    found = [_answer(references.get(g.prompt), g) for g in series.accuracy.generations]
    return tuple(sorted(found, key=lambda a: (a.candidate.problem is None, a.identical)))


def _answer(reference: Generation | None, candidate: Generation) -> Answer:
    if reference is None:
        return Answer(candidate.prompt, "", "", candidate.text, None, candidate)
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(reference.text, candidate.text, strict=False))
    length = sum(1 for _ in pairs)
    if length < max(len(reference.text), len(candidate.text)):  # mark whole words, not from the middle of one
        while length and candidate.text[length - 1].isascii() and candidate.text[length - 1].isalnum():
            length -= 1
    shared = candidate.text[:length]
    return Answer(candidate.prompt, shared, reference.text[length:], candidate.text[length:], reference, candidate)


def request_values(manifest: RunManifest) -> tuple[RequestValue, ...]:
    """The request, one value a line. Its origin is that of the nearest enclosing name that has one."""
    spec = manifest.spec
    said = spec.model_dump(mode="json", exclude={"origin", "traffic", "slo"})
    rows = [(name, value) for name, value in flattened(said) if value is not None]
    traffic = spec.traffic
    mix = ", ".join(
        f"{c.weight:g} × {c.prompt_tokens} → {c.output_tokens or traffic.output_tokens}" for c in traffic.lengths
    )
    rows += [
        ("traffic.id", traffic.id),
        ("traffic.lengths", f"{mix} (share × prompt → answer tokens)"),
        ("traffic.loads", [str(load) for load in traffic.loads]),
        ("traffic.seconds_per_load", traffic.seconds_per_load),
        ("traffic.min_requests_per_load", traffic.min_requests_per_load),
        ("traffic.max_requests_per_load", traffic.max_requests_per_load),
        ("traffic.seed", traffic.seed),
    ]
    rows += [(f"slo.{limit.name}", limit_words(limit)) for limit in spec.slo.limits]
    if spec.slo.at is not None:
        rows.append(("slo.at", str(spec.slo.at)))
    return tuple(RequestValue(name, _plain(value), _origin(spec.origin, name)) for name, value in rows)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "any"
    if isinstance(value, dict):
        return "none"
    return (
        "yes" if value is True else "no" if value is False else f"{value:g}" if isinstance(value, float) else str(value)
    )


def _origin(origins: dict[str, Origin], name: str) -> Origin:
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((origins[prefix] for prefix in prefixes if prefix in origins), "default")


def request_file(manifest: RunManifest) -> str:
    """The request as a file that ``run`` reads: every value written out, so that no default can change under it."""
    spec = manifest.spec.model_dump(mode="json", exclude_none=True, exclude=set(REPRODUCE_WITHOUT))
    return yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=110)
