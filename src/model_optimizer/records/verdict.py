"""What became of a candidate."""

from __future__ import annotations

from typing import Literal

from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.diagnosis import Finding
from model_optimizer.records.measurement import AccuracyScore, Measurement

Outcome = Literal["meets_slo", "misses_slo", "loses_accuracy", "failed", "not_tried"]


class Check(Record):
    """One limit and what was found. ``ok`` is ``None`` where it could not be decided."""

    name: str
    limit: str
    found: str
    ok: bool | None
    margin: float | None = None


class Failure(Record):
    """An error of one candidate, kept as data; ``finding`` is what diagnose says of its log, where it says anything."""

    error: str
    what: str
    cause: str
    fix: str
    evidence: tuple[str, ...] = ()
    log: str | None = None
    finding: Finding | None = None


class Verdict(Record):
    """A candidate's outcome with everything that led to it.

    ``best_load`` is the heaviest load at which every limit was kept; ``goodput_per_s`` the goodput there.
    """

    candidate: Candidate
    outcome: Outcome
    reason: str
    checks: tuple[Check, ...] = ()
    accuracy: AccuracyScore | None = None
    measurement: Measurement | None = None
    artifact: Artifact | None = None
    artifact_bytes: int | None = None
    best_load: str | None = None
    goodput_per_s: float | None = None
    failure: Failure | None = None
