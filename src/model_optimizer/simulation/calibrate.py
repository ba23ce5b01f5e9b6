"""Step times from one server start: which loads to put on it, and what their requests tell.

Alone, a request's time to first token is the way in, its prompt's steps and the way out. Among c users with short
prompts, the usual gap between tokens is a step that decodes c sequences: medians leave out the gaps in which somebody's
prompt was computed. What these loads cannot tell apart (the serving process's share of a request's way in) is refined
on the loads that were measured anyway.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from model_optimizer.metrics.requests import itl_s, output_tokens, prompt_tokens, ttft_s
from model_optimizer.records.measurement import LoadResult, RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel, StepSample
from model_optimizer.records.workload import SLO, LengthClass, Load, TrafficProfile
from model_optimizer.simulation.simulate import simulate

PROMPTS = (48, 256, 512, 1024, 2048, 4096)
ANSWER = 6
DECODE_PROMPT = 24
DECODE_ANSWER = 48
LONG_PROMPT = 1024
SHORTEST_S = 3.0
LARGE_BATCH = 256
"""A batch this large shows what the serving process can hand out; asked of engines that take it."""

REFINE_REQUESTS = 250


def calibration_plan(*, max_concurrency: int, max_model_len: int) -> tuple[TrafficProfile, ...]:
    """The loads: lone prompts of several lengths, then batches of short ones up to ``max_concurrency``, then a batch
    with long contexts. Each takes seconds on a GPU; ``max_concurrency`` is what the engine runs at once.
    """
    room = max_model_len - ANSWER - 8
    lengths = [tokens for tokens in PROMPTS if tokens <= room] or [max(1, room)]
    alone = _profile("lone prompts", lengths, ANSWER, [1], min_requests=4 * len(lengths))
    batches = sorted({min(batch, max_concurrency) for batch in (1, 4, 16, 64, LARGE_BATCH)})
    plan = [alone]
    plan += [_profile(f"batch of {batch}", [DECODE_PROMPT], DECODE_ANSWER, [batch]) for batch in batches]
    if room >= LONG_PROMPT + DECODE_ANSWER and max_concurrency >= 4:
        plan.append(_profile("long contexts", [LONG_PROMPT], DECODE_ANSWER, [min(8, max_concurrency)]))
    return tuple(plan)


def samples_from(measured: Sequence[tuple[Load, Sequence[RequestTrace]]]) -> tuple[StepSample, ...]:
    """What the requests of the planned loads say of steps. Loads whose requests failed say nothing."""
    samples: list[StepSample] = []
    for load, traces in measured:
        good = [trace for trace in traces if trace.error is None]
        by_length: dict[int, list[RequestTrace]] = defaultdict(list)
        for trace in good:
            by_length[trace.target_prompt_tokens].append(trace)
        if load.concurrency == 1 and len(by_length) > 1:
            samples += [_first_token(group) for group in by_length.values()]
        elif good:
            samples += _decoding(load.concurrency or 1, good)
    return tuple(samples)


def refine(
    model: StepModel,
    config: SchedulerConfig,
    traffic: TrafficProfile,
    measured: Sequence[LoadResult],
    *,
    num_requests: int = REFINE_REQUESTS,
) -> StepModel:
    """The model scaled in four places so that simulating the measured loads gives their latencies back.

    Coordinate search over factors of the prompt's cost, the floors and the serving process's time for a token, and over
    its time for a request; the error is the mean squared logarithm of predicted ÷ measured TTFT and TPOT, P50 and P99.
    """
    loads = [result for result in measured if result.ttft_s is not None and result.tpot_s is not None]
    if not loads:
        return model

    def error(candidate: StepModel) -> float:
        found = [
            _distance(
                simulate(config, candidate, traffic, r.load, slo=SLO(), num_requests=num_requests, seed=traffic.seed), r
            )
            for r in loads
        ]
        return statistics.fmean(found)

    best, least = model, error(model)
    for _ in range(2):
        for change in _CHANGES:
            for factor in (0.6, 0.8, 1.25, 1.6):
                tried = change(best, factor)
                found = error(tried)
                if found < 0.98 * least:
                    best, least = tried, found
    return best


def _scaled(*names: str) -> Callable[[StepModel, float], StepModel]:
    def change(model: StepModel, factor: float) -> StepModel:
        return model.model_copy(update={name: getattr(model, name) * factor for name in names})

    return change


def _request(model: StepModel, factor: float) -> StepModel:
    """Moves time between the way in and the serving process, of which only the latter is a queue."""
    request_s = model.request_s * factor if model.request_s else 0.0004 * factor
    total = model.overhead_s + model.request_s
    return model.model_copy(update={"request_s": min(request_s, total), "overhead_s": max(0.0, total - request_s)})


_CHANGES = (
    _scaled("per_prefill_token_s", "per_prefill_pair_s"),
    _scaled("prompt_floor_s", "large_floor_s"),
    _scaled("token_s"),
    _scaled("fixed_s", "per_decode_seq_s"),
    _request,
)


def _distance(simulated: LoadResult, measured: LoadResult) -> float:
    pairs = []
    for name in ("ttft_s", "tpot_s"):
        one, other = getattr(simulated, name), getattr(measured, name)
        if one is None or other is None:
            return 1.0
        pairs += [(one.p50, other.p50), (one.p99, other.p99)]
    return statistics.fmean(math.log(max(a, 1e-6) / max(b, 1e-6)) ** 2 for a, b in pairs)


def _first_token(traces: Sequence[RequestTrace]) -> StepSample:
    values = [value for trace in traces if (value := ttft_s(trace)) is not None]
    return StepSample(
        prefill_tokens=statistics.median(prompt_tokens(trace) for trace in traces),
        decode_seqs=0,
        context_tokens=0,
        seconds=statistics.median(values),
        n=len(values),
        is_ttft=True,
    )


def _decoding(users: int, traces: Sequence[RequestTrace]) -> list[StepSample]:
    gaps = [gap for trace in traces for gap in itl_s(trace)]
    if not gaps:
        return []
    lengths = statistics.fmean(prompt_tokens(trace) + output_tokens(trace) / 2 for trace in traces)
    return [
        StepSample(
            prefill_tokens=0,
            decode_seqs=users,
            context_tokens=users * lengths,
            seconds=statistics.median(gaps),
            n=len(gaps),
        )
    ]


def _profile(
    name: str, lengths: Sequence[int], answer: int, loads: Sequence[int], *, min_requests: int | None = None
) -> TrafficProfile:
    return TrafficProfile(
        id=f"calibration: {name}",
        lengths=tuple(LengthClass(prompt_tokens=tokens, weight=1.0) for tokens in lengths),
        output_tokens=answer,
        loads=tuple(Load(concurrency=load) for load in loads),
        seconds_per_load=SHORTEST_S,
        min_requests_per_load=min_requests or max(4, loads[0]),
    )
