"""Who appears in a report, under which name, in which role and in which order: one answer for all its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from model_optimizer.records.candidate import Candidate, Estimate
from model_optimizer.records.measurement import AccuracyScore, LoadResult, Measurement
from model_optimizer.records.run import RunManifest
from model_optimizer.records.verdict import Outcome, Verdict
from model_optimizer.records.workload import Load
from model_optimizer.render.words import shorten

Role = Literal["winner", "nearest", "other", "baseline"]
State = Outcome | Literal["baseline", "waiting"]

STATES: dict[State, str] = {
    "meets_slo": "meets the SLO",
    "misses_slo": "misses the SLO",
    "loses_accuracy": "loses accuracy",
    "failed": "failed",
    "not_tried": "not tried",
    "baseline": "baseline",
    "waiting": "not yet tried",
}
"""What became of a candidate, in words."""

STATES_OF_SEVERAL: dict[State, str] = {
    **STATES,
    "meets_slo": "meet the SLO",
    "misses_slo": "miss the SLO",
    "loses_accuracy": "lose accuracy",
}


@dataclass(frozen=True)
class Series:
    """The baseline or a candidate, with all that is known of it. ``name`` is unique within the report."""

    id: str
    name: str
    role: Role
    state: State
    candidate: Candidate
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    accuracy: AccuracyScore | None = None
    estimate: Estimate | None = None
    size_bytes: int | None = None

    @property
    def loads(self) -> tuple[LoadResult, ...]:
        """What was measured, lightest load first; empty where nothing was."""
        return self.measurement.loads if self.measurement else ()

    @property
    def peak_memory_bytes(self) -> int | None:
        """Measured peak of the server's process tree."""
        server = self.measurement.server if self.measurement else None
        return server.peak_memory_bytes if server else None

    def at(self, load: Load | None) -> LoadResult | None:
        """The result at this load, if it was measured."""
        return next((result for result in self.loads if result.load == load), None)


def all_series(manifest: RunManifest) -> tuple[Series, ...]:
    """Winner (or nearest) first, the others in the order of their verdicts, those not yet tried, the baseline last."""
    plan = manifest.plan
    planned = {p.candidate.id: p.estimate for p in plan.candidates} if plan else {}
    found = [_of_verdict(manifest, verdict, planned.get(verdict.candidate.id)) for verdict in manifest.verdicts]
    tried = {series.id for series in found}
    waiting = [
        Series(p.candidate.id, p.candidate.label, "other", "waiting", p.candidate, estimate=p.estimate)
        for p in (plan.candidates if plan else ())
        if p.candidate.id not in tried
    ]
    baseline = _of_baseline(manifest)
    first = [series for series in found if series.role != "other"]
    rest = [series for series in found if series.role == "other"]
    return _named([*first, *rest, *waiting, *([baseline] if baseline else [])])


def best(series: Iterable[Series]) -> Series | None:
    """The winner, or the nearest where nothing won."""
    return next((s for s in series if s.role in ("winner", "nearest")), None)


def baseline_of(series: Iterable[Series]) -> Series | None:
    """The baseline, where it was measured."""
    return next((s for s in series if s.role == "baseline"), None)


def lightest_common(one: Series, other: Series) -> Load | None:
    """The lightest load at which both were measured."""
    return next((result.load for result in one.loads if other.at(result.load)), None)


def _of_verdict(manifest: RunManifest, verdict: Verdict, estimate: Estimate | None) -> Series:
    candidate = verdict.candidate
    role: Role = "other"
    if candidate.id == manifest.winner:
        role = "winner"
    elif manifest.winner is None and candidate.id == manifest.nearest:
        role = "nearest"
    return Series(
        id=candidate.id,
        name=candidate.label,
        role=role,
        state=verdict.outcome,
        candidate=candidate,
        verdict=verdict,
        measurement=verdict.measurement,
        accuracy=verdict.accuracy,
        estimate=estimate,
        size_bytes=verdict.artifact.size_bytes if verdict.artifact else verdict.artifact_bytes,
    )


def _of_baseline(manifest: RunManifest) -> Series | None:
    baseline = manifest.baseline
    if baseline is None:
        return None
    return Series(
        id=f"baseline-{baseline.candidate.id}",  # it may be a candidate too
        name=baseline.candidate.label,
        role="baseline",
        state="baseline",
        candidate=baseline.candidate,
        measurement=baseline.measurement,
        estimate=manifest.plan.baseline_estimate if manifest.plan else None,
        size_bytes=manifest.model.weight_bytes if manifest.model else None,
    )


def _named(series: list[Series]) -> tuple[Series, ...]:
    """Same scheme and engine twice (other settings): the id tells them apart, and the baseline says that it is one."""
    series = [replace(s, name=shorten(s.name)) for s in series]
    times = Counter(s.name for s in series)
    return tuple(
        s if times[s.name] == 1 else replace(s, name=f"{s.name} {'(baseline)' if s.role == 'baseline' else s.id}")
        for s in series
    )
