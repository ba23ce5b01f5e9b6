"""Predictions: memory and speed worked out from shapes and facts. Never measured, always with their arithmetic."""

from __future__ import annotations

from model_optimizer.records.base import Record


class Term(Record):
    """One line of arithmetic for ``--explain``: a name, its value in base units, how it came about, and from what.

    ``value`` is ``None`` where the line is words: then ``formula`` says it all.
    """

    name: str
    value: float | None = None
    unit: str = ""
    formula: str
    origin: str = "model"


class Parallelism(Record):
    """How a model is split over GPUs. ``expert`` ranks share the experts; the rest is split by tensor and pipeline."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline


class MemoryPlan(Record):
    """Memory of one GPU (or host), the fullest of the replica, in bytes.

    ``kv_bytes`` is what is left for the KV cache after everything else inside ``usable_bytes``; negative where even
    the weights do not fit. ``max_sequences`` counts sequences at the traffic's mean live length.
    """

    usable_bytes: float
    weight_bytes: float
    activation_bytes: float
    graph_bytes: float
    runtime_bytes: float
    kv_bytes: float
    kv_bytes_per_token: float
    kv_tokens: int
    longest_context: int
    max_sequences: int
    weights: dict[str, float] = {}

    @property
    def weights_fit(self) -> bool:
        """True where something is left for a KV cache."""
        return self.kv_bytes > 0


class Span(Record):
    """A predicted value with its range, base units."""

    low: float
    value: float
    high: float


class SpeedEstimate(Record):
    """Predicted speed of one replica at one load. ``binds``: what the decode step waits for."""

    concurrency: float
    ttft_s: Span
    tpot_s: Span
    output_tokens_per_s: Span
    request_rate_per_s: Span
    tokens_per_s_per_user: Span
    tpot_floor_s: float
    ttft_floor_s: float
    binds: str
