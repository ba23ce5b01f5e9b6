"""A request, and the record of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate, Plan
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.measurement import Generation, Measurement
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.tuning import Tuning, TuningSpec
from model_optimizer.records.verdict import Verdict
from model_optimizer.records.workload import SLO, AccuracyLimits, Objective, TrafficProfile
from model_optimizer.units import Seconds

Origin = Literal["default", "file", "flag"]


class ToolConfig(Record):
    """Use this interpreter for a tool instead of an environment that we build."""

    python: str | None = None


class Budget(Record):
    """When to stop trying candidates."""

    candidates: Annotated[int, Field(gt=0)] = 6
    wall: Seconds | None = None
    first_that_meets: bool = False


class RunSpec(Record):
    """The user's request, fully resolved. ``origin`` says where each value came from."""

    model: str
    gpu: str = "auto"
    traffic: TrafficProfile
    slo: SLO = SLO()
    accuracy: AccuracyLimits = AccuracyLimits()
    validate_accuracy: bool = True
    objective: Objective = "goodput"
    engines: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    max_model_len: Annotated[int, Field(gt=0)] | None = None
    budget: Budget = Budget()
    tuning: TuningSpec | None = None
    trust_remote_code: bool = False
    tools: dict[str, ToolConfig] = {}
    origin: dict[str, Origin] = {}


class Reference(Record):
    """The unoptimised model's own outputs: what every candidate's accuracy is compared with.

    ``key`` finds the stored tokens, log-likelihoods and logits.
    """

    key: str
    perplexity: float
    num_tokens: int
    dtype: str
    generations: tuple[Generation, ...] = ()


class Baseline(Record):
    """The unoptimised model under the same prompts and definitions; what everything is compared with."""

    candidate: Candidate
    measurement: Measurement
    reference: Reference | None = None


class StageRecord(Record):
    """One step of a run: run, or remembered from an earlier one.

    ``seconds`` is the time spent in this run (next to nothing where remembered); ``first_seconds`` what it took when
    it was computed, where that is known.
    """

    stage: str
    subject: str
    key: str
    status: Literal["run", "remembered", "failed"]
    seconds: float
    when: str
    first_seconds: float | None = None


class RunManifest(Record):
    """Everything about a run; the report is a function of this alone."""

    run_id: str
    started_at: str
    finished_at: str | None = None
    status: Literal["running", "finished", "failed", "interrupted"] = "running"
    spec: RunSpec
    product_version: str
    host: HostSpec | None = None
    model: ModelSpec | None = None
    plan: Plan | None = None
    baseline: Baseline | None = None
    stages: tuple[StageRecord, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    tunings: tuple[Tuning, ...] = ()
    winner: str | None = None
    winner_artifact: Artifact | None = None
    nearest: str | None = None
    tools: dict[str, str] = {}
    error: dict[str, object] | None = None

    @property
    def winning(self) -> Verdict | None:
        """The winner's verdict."""
        return next((v for v in self.verdicts if v.candidate.id == self.winner), None)
