"""One way of serving the model: a scheme, the steps that build it, an engine and its settings."""

from __future__ import annotations

from model_optimizer.records.base import Record
from model_optimizer.records.model import Format


class Scheme(Record):
    """A precision of weights (and activations), by the name its community writes: ``q8_0``, ``w4a16``, ``fp8``."""

    id: str
    title: str
    weight_bits: float
    format: Format
    note: str = ""


class TransformStep(Record):
    """One transform applied to the artifact before it."""

    transform: str
    options: dict[str, str | int | float | bool] = {}


class Candidate(Record):
    """A full recipe. Two candidates with the same fields are the same candidate: the id is the digest."""

    scheme: str
    engine: str
    steps: tuple[TransformStep, ...] = ()
    max_model_len: int
    engine_args: dict[str, str | int | float | bool] = {}

    @property
    def id(self) -> str:
        """The first eight digits of the digest."""
        return self.digest()[:8]

    @property
    def label(self) -> str:
        """``q8_0 · llama.cpp``: for people."""
        return f"{self.scheme} · {self.engine}"


class Estimate(Record):
    """Predicted, never measured: what the plan used to rank."""

    weight_bytes: int
    memory_bytes: int
    decode_floor_s: float | None = None


class PlannedCandidate(Record):
    """A candidate in the plan, with its prediction and why it has this place in the order."""

    candidate: Candidate
    estimate: Estimate
    why: str


class Refusal(Record):
    """A route that was left out: the reason as a code for machines and a sentence for people."""

    route: str
    code: str
    reason: str
    fix: str | None = None
    source: str | None = None
    date: str | None = None


class Plan(Record):
    """What will be tried, best first; what it is compared with; what was refused."""

    baseline: Candidate
    baseline_estimate: Estimate
    candidates: tuple[PlannedCandidate, ...]
    refused: tuple[Refusal, ...]
