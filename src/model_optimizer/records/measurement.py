"""What was measured: one request, one load level, one server, one accuracy comparison."""

from __future__ import annotations

from model_optimizer.records.base import Record
from model_optimizer.records.workload import Load


class RequestTrace(Record):
    """One request as the client saw it. Times are seconds on one monotonic clock.

    ``scheduled_s`` is when it should have left (open loop) or did leave (closed loop); ``sent_s`` when it really did.
    ``chunk_s`` are the arrival times of the non-empty chunks; the first is the first token.
    Token counts are the server's own (``usage``); ``None`` where it did not report them.
    """

    scheduled_s: float
    sent_s: float
    chunk_s: tuple[float, ...] = ()
    end_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    target_prompt_tokens: int
    finish_reason: str | None = None
    error: str | None = None


class Distribution(Record):
    """Percentiles over raw samples, never averaged over runs. Base units of the metric."""

    n: int
    mean: float
    stdev: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ClientHealth(Record):
    """Was the client itself the bottleneck? ``verdict`` is ``ok`` or says what was too slow."""

    loop_lag_p99_s: float
    cpu_share: float
    verdict: str = "ok"

    @property
    def ok(self) -> bool:
        """True where the client kept up."""
        return self.verdict == "ok"


class LoadResult(Record):
    """One load level: the steady window, warm-up and drain excluded.

    ``output_tokens_per_s`` counts tokens of all users in the window; ``goodput_per_s`` requests a second that kept
    every latency limit; ``good_share`` their share of all requests, failed ones included.
    """

    load: Load
    window_s: float
    num_requests: int
    num_errors: int
    errors: dict[str, int] = {}
    ttft_s: Distribution | None = None
    tpot_s: Distribution | None = None
    itl_s: Distribution | None = None
    e2e_s: Distribution | None = None
    output_tokens_per_s: float
    input_tokens_per_s: float
    request_rate_per_s: float
    goodput_per_s: float
    good_share: float
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    cached_prompt_share: float | None = None
    usage_reported: bool = True
    warmup_requests: int = 0
    warmup_stable: bool = True
    client: ClientHealth
    notes: tuple[str, ...] = ()

    @property
    def error_rate(self) -> float:
        """Failed requests as a share of all in the window."""
        return self.num_errors / self.num_requests if self.num_requests else 0.0


class ServerStats(Record):
    """What serving cost. Memory is the peak PSS of the engine's process tree (shared pages counted once)."""

    ready_s: float
    peak_memory_bytes: int
    loaded_memory_bytes: int
    cpu_seconds: float = 0.0


class Measurement(Record):
    """A server under its loads. ``traces_key`` finds the per-request traces in the store."""

    engine: str
    engine_version: str
    host_identity: tuple[str, ...]
    measured_at: str
    loads: tuple[LoadResult, ...]
    server: ServerStats | None = None
    traces_key: str | None = None

    def at(self, load: Load | None) -> LoadResult:
        """The result at this load; ``None`` means the lightest, which is the first."""
        if load is None:
            return self.loads[0]
        for result in self.loads:
            if result.load == load:
                return result
        raise KeyError(str(load))


class Generation(Record):
    """One greedy answer to a packaged prompt."""

    prompt: str
    text: str
    output_tokens: int
    finish_reason: str | None = None
    problem: str | None = None


class AccuracyScore(Record):
    """A candidate against the stored reference, on the same tokens.

    ``perplexity`` = exp(mean negative log-likelihood) over ``num_tokens`` positions; ``perplexity_ci95`` is the
    interval of the *ratio* to the reference's, from paired differences over chunks. ``kl_mean`` is in nats a token;
    where ``kl_is_lower_bound``, the engine gave only its most likely tokens and the rest is one bucket.
    ``first_divergence_mean`` counts words (a CJK character is one).
    ``logits_relative_l2`` = ‖candidate − reference‖ / ‖reference‖ over mean-centred logits.
    """

    num_tokens: int
    reference_perplexity: float
    perplexity: float
    perplexity_ratio: float
    perplexity_ci95: tuple[float, float]
    top1_agreement: float
    kl_mean: float
    kl_p99: float
    kl_is_lower_bound: bool = False
    logits_relative_l2: float | None = None
    num_not_finite: int = 0
    tokenizer_agreement: float | None = None
    num_probe_positions: int
    generations: tuple[Generation, ...] = ()
    reference_generations: tuple[Generation, ...] = ()
    first_divergence_mean: float | None = None

    @property
    def perplexity_rise(self) -> float:
        """Share above the reference's perplexity (negative: below)."""
        return self.perplexity_ratio - 1.0

    @property
    def degenerate_share(self) -> float:
        """Share of generations with a problem."""
        return sum(g.problem is not None for g in self.generations) / len(self.generations) if self.generations else 0.0
