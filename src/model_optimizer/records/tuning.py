"""Engine parameters that are searched, what each trial gave, and what was proven about the winner."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.measurement import LoadResult, ServerStats
from model_optimizer.records.simulation import StepModel, StepSample
from model_optimizer.records.verdict import Failure
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.units import Seconds, Share

Scalar = str | int | float | bool
Settings = dict[str, Scalar]
"""Parameter → value, in the engine's own names. A parameter that is absent is left to the engine."""

LoadKind = Literal["rate", "concurrency"]
Proof = Literal["better", "no difference", "worse", "not enough evidence"]
TrialRole = Literal["default", "seed", "search", "confirm"]


class Parameter(Record):
    """One parameter that may be searched here. ``values`` are what may be tried, in order where ``is_ordered``.

    ``default`` is what the engine takes when it is not told (``None``: it decides at start). ``needs`` holds settings
    of other parameters without which this one means nothing (``{"enable_chunked_prefill": True}``).
    """

    name: str
    values: Annotated[tuple[Scalar, ...], Field(min_length=1)]
    default: Scalar | None = None
    is_ordered: bool = True
    needs: Settings = {}
    effect: str = ""
    source: str | None = None


class Space(Record):
    """What is searched: parameters, and what was left out with the reason."""

    engine: str
    version: str
    parameters: tuple[Parameter, ...]
    left_out: dict[str, str] = {}


class LoadPoint(Record):
    """One load that was tried in a search for the boundary. ``margin`` is the room to the tightest limit as a share of
    that limit (negative: broken).
    """

    load: Load
    kept: bool
    margin: float
    result: LoadResult


class Boundary(Record):
    """The highest load that keeps the SLO, between ``kept`` and ``broken``, both measured.

    ``kept`` ``None``: not even the lightest load kept it. ``broken`` ``None``: no load that was tried broke it, so the
    truth is higher. ``goodput_per_s`` is the goodput measured at ``kept`` (0 without it). ``crossing`` is where the
    margin is zero by interpolation, with its 95 % interval over redrawn requests.
    """

    kept: Load | None = None
    broken: Load | None = None
    goodput_per_s: float = 0.0
    crossing: float | None = None
    crossing_ci95: tuple[float, float] | None = None
    points: tuple[LoadPoint, ...] = ()


class Prediction(Record):
    """What the simulation said before the trial."""

    load: Load | None
    goodput_per_s: float
    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None


class PointPrediction(Record):
    """What the simulation says of one load that was measured: is the SLO kept, and how late is the last percent?"""

    load: Load
    kept: bool
    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None


class TrialRun(Record):
    """One start of a server with these settings: what the loads gave, or why it failed.

    ``samples`` are step times for the simulation, where the trial also calibrated; ``kv_tokens`` is the KV cache's room
    as the engine says it. ``held_out`` holds other shapes of traffic, measured once each.
    """

    boundary: Boundary | None = None
    samples: tuple[StepSample, ...] = ()
    kv_tokens: int | None = None
    held_out: dict[str, LoadResult] = {}
    engine_version: str = ""
    server: ServerStats | None = None
    failure: Failure | None = None
    ready_s: float = 0.0
    seconds: float = 0.0
    measured_at: str = ""
    traces_key: str | None = None


class Trial(Record):
    """Settings that were proposed, why, what was predicted, and what came of it.

    ``outcome``: ``measured``; ``failed`` (crashed, hung, out of memory: the run's ``failure`` says what diagnose makes
    of it); ``skipped`` (the simulation put it so far below the best that no server was started).
    """

    number: int
    role: TrialRole
    settings: Settings
    outcome: Literal["measured", "failed", "skipped"]
    why: str
    predicted: Prediction | None = None
    predicted_points: tuple[PointPrediction, ...] = ()
    run: TrialRun | None = None

    @property
    def boundary(self) -> Boundary | None:
        """The run's."""
        return self.run.boundary if self.run is not None else None

    @property
    def goodput_per_s(self) -> float:
        """Goodput at the boundary; 0 where nothing was kept."""
        return self.boundary.goodput_per_s if self.boundary is not None else 0.0


class Agreement(Record):
    """Prediction against measurement over the trials that have both, but for the one that the step times come from.

    ``goodput_error_p50`` (of the load at the boundary) and ``ttft_p99_error_p50`` (of the loads that were measured) are
    medians of |predicted − measured| / measured; ``rank`` is Spearman's correlation of the boundaries.
    ``false_passes`` counts the loads predicted to be kept (``num_passes``) that were measured broken.
    """

    num_trials: int
    goodput_error_p50: float | None = None
    ttft_p99_error_p50: float | None = None
    rank: float | None = None
    false_passes: int = 0
    num_passes: int = 0


class Confirmation(Record):
    """Winner against default in interleaved repeats, each a server start of its own.

    ``ratio`` = goodput of the winner / default's, over the repeats of ``order`` (``ABBA``: A is the default), with the
    95 % interval; ``None`` where the default kept nothing. ``held_out`` compares shapes of traffic that the search did
    not see, at one load: {shape: {ttft_p99: (default, winner)}} in seconds.
    """

    order: str
    default: tuple[Boundary, ...]
    winner: tuple[Boundary, ...]
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    verdict: Proof
    held_out: dict[str, dict[str, tuple[float, float]]] = {}


class StressResult(Record):
    """The winner under the worst that its settings allow: longest prompts in all slots, a burst after idleness, and
    clients that hang up.
    """

    passed: bool
    phases: dict[str, str]
    num_requests: int
    num_errors: int
    preemptions: float | None = None
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None
    failure: Failure | None = None


class TuningBudget(Record):
    """When the search ends. ``wall`` counts everything: starts, loads, confirmation."""

    wall: Seconds = 1200.0
    trials: Annotated[int, Field(gt=0)] = 12


class TuningSpec(Record):
    """How to tune. ``kind``: whether the boundary is sought over arrival rates (SLO claims) or over users at once.

    ``share``: of the requests that must keep all limits at the boundary; ``precision``: how closely the boundary is
    sought; ``seconds_per_load``: the window of one load inside a trial. ``order`` of the repeats that confirm: A is the
    reference's default, B the winner, C the default of the winner's own candidate where that is another.
    """

    budget: TuningBudget = TuningBudget()
    kind: LoadKind = "rate"
    share: Share = 0.99
    precision: Share = 0.08
    seconds_per_load: Seconds = 20.0
    order: str = "ABBA"
    parameters: tuple[str, ...] = ()
    fixed: Settings = {}

    @field_validator("order")
    @classmethod
    def _has_both(cls, value: str) -> str:
        """Repeats of the default alone, or of the winner alone, confirm nothing."""
        if not {"A", "B"} <= set(value) <= {"A", "B", "C"}:
            raise ValueError(
                f"{value!r}: letters A (default), B (winner) and C (its own default), A and B at least once"
            )
        return value


class Tuning(Record):
    """The search for one candidate's settings. ``winner`` is the number of the trial that was chosen; trial 0 is the
    engine's default. ``confirmation`` compares it with ``reference``'s default (a label: another candidate's or this
    one's); where that is another's, ``over_own_default`` compares it with this one's.
    """

    candidate: Candidate
    engine_version: str
    traffic: TrafficProfile
    slo: SLO
    spec: TuningSpec
    space: Space
    steps: StepModel | None = None
    trials: tuple[Trial, ...] = ()
    winner: int | None = None
    agreement: Agreement | None = None
    confirmation: Confirmation | None = None
    over_own_default: Confirmation | None = None
    reference: str | None = None
    stress: StressResult | None = None
    importance: dict[str, float] = {}
    command: str | None = None
    seconds: float = 0.0
    ended: str = ""

    @property
    def default(self) -> Trial | None:
        """Trial 0."""
        return self.trials[0] if self.trials else None

    @property
    def best(self) -> Trial | None:
        """The winner's trial."""
        return next((trial for trial in self.trials if trial.number == self.winner), None)
