"""Step times from one server start: which loads to put on it, and what their requests tell.

Alone, a request's time to first token is the way in, its prompt's steps and the way out. Among c users with short
prompts, the usual gap between tokens is a step that decodes c sequences: medians leave out the gaps in which somebody's
prompt was computed. What these loads cannot tell apart (the serving process's share of a request's way in) is refined
on the loads that were measured anyway.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from model_optimizer.metrics.requests import itl_s, output_tokens, prompt_tokens, ttft_s
from model_optimizer.records.measurement import LoadResult, RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel, StepSample
from model_optimizer.records.workload import SLO, LengthClass, Load, TrafficProfile
from model_optimizer.simulation.simulate import quick_result, run_load, shape_for

PROMPTS = (48, 128, 256, 512, 1024, 2048, 4096)
ANSWER = 6
AMONG_OTHERS = (128, 400, 640, 1536)
"""Below and above the largest captured graph (512), and long enough to be bound by arithmetic."""

DECODE_PROMPT = 24
DECODE_ANSWER = 48
LONG_PROMPT = 1024
SHORTEST_S = 3.0
BATCHES = (1, 4, 16, 64, 256)
"""The largest shows what the serving process can hand out; asked of engines that take it."""

SPARE = 8
"""Prompts are a few tokens longer or shorter than asked for."""

FEW = (2, 32)
"""So many users leave prompts room enough to be told apart."""

FULL = 0.8

SMEAR_S = 0.004
"""The tokens of one step arrive within about this time."""

REQUEST_S = (0.0005, 0.001, 0.0015)
SEEDS = 2
"""Users who wait for each other's prompts fall into step or not by chance: judged by more than one course."""


WORTH = 0.9
"""A change must lower the error to this share."""

REFINE_REQUESTS = 250


def calibration_plan(*, max_concurrency: int, max_model_len: int) -> tuple[TrafficProfile, ...]:
    """The loads: lone prompts of several lengths, then batches of short ones up to ``max_concurrency``, then a batch
    with long contexts. Each takes seconds on a GPU; ``max_concurrency`` is what the engine runs at once.
    """
    room = max_model_len - ANSWER - SPARE
    lengths = [tokens for tokens in PROMPTS if tokens <= room] or [max(1, room // 2)]
    prompt, answer = min(DECODE_PROMPT, max_model_len // 4), min(DECODE_ANSWER, max_model_len // 2)
    beside = max_model_len - answer - SPARE
    plan = [_profile("lone prompts", lengths, ANSWER, 1, min_requests=4 * len(lengths))]
    if max_concurrency >= FEW[0]:
        among = [tokens for tokens in AMONG_OTHERS if tokens <= beside] or [prompt]
        plan.append(_profile("prompts among others", among, answer, min(4, max_concurrency), min_requests=24))
    for batch in sorted({min(batch, max_concurrency) for batch in BATCHES}):
        plan.append(_profile(f"batch of {batch}", [prompt], answer, batch))
    if beside >= LONG_PROMPT and max_concurrency >= 4:
        plan.append(_profile("long contexts", [LONG_PROMPT], answer, min(8, max_concurrency)))
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
            samples += _decoding(good)
            samples += _prompts_among_others(load.concurrency or 1, good)
    return tuple(samples)


def refine(
    model: StepModel,
    config: SchedulerConfig,
    traffic: TrafficProfile,
    measured: Sequence[LoadResult],
    *,
    num_requests: int = REFINE_REQUESTS,
) -> StepModel:
    """The serving process's times (``request_s``, ``token_s``) chosen so that simulating the measured loads gives their
    latencies back.

    The error is the mean squared logarithm of predicted ÷ measured TTFT and TPOT, P50 and P99. What steps cost is left
    as the samples have it: fitted to latencies of a whole load, it takes over the errors of everything else.
    """
    loads = [result for result in measured if result.ttft_s is not None and result.tpot_s is not None]
    if not loads:
        return model

    def error(candidate: StepModel) -> float:
        found = []
        for measured_load in loads:
            load = measured_load.load
            shape = shape_for(load, num_requests=num_requests)
            for number in range(SEEDS if load.concurrency else 1):
                run = run_load(config, candidate, traffic, load, shape, seed=f"{traffic.seed}/{number}")
                found.append(_distance(quick_result(load, run, SLO()), measured_load))
        return statistics.fmean(found)

    best, least = model, error(model)
    total = model.overhead_s + model.request_s
    for request_s in REQUEST_S:
        tried = model.model_copy(update={"request_s": request_s, "overhead_s": max(0.0, total - request_s)})
        found = error(tried)
        if found < WORTH * least:
            best, least = tried, found
    for factor in (0.84, 1.19):
        tried = best.model_copy(update={"token_s": best.token_s * factor})
        found = error(tried)
        if found < WORTH * least:
            best, least = tried, found
    return best


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


def _decoding(traces: Sequence[RequestTrace]) -> list[StepSample]:
    """The usual gap between tokens while (nearly) as many answers as ever were being written and nobody's prompt ended.

    Of a short answer's users many wait for their first token at any time, so writers are counted, not users. In the
    beginning some write who are not counted; then those who are counted are few, which leaves that time out.
    """
    traces = [trace for trace in traces if len(trace.chunk_s) > 1]
    if not traces:
        return []
    firsts = sorted(trace.chunk_s[0] for trace in traces)
    lasts = sorted(trace.chunk_s[-1] for trace in traces)
    found: list[tuple[int, float]] = []
    for trace in traces:
        for a, b in pairwise(trace.chunk_s):
            begun = bisect.bisect_right(firsts, a)
            if bisect.bisect_right(firsts, b) == begun:
                found.append((begun - bisect.bisect_right(lasts, a), b - a))
    if not found:
        return []
    most = max(writers for writers, _ in found)
    full = [(writers, gap) for writers, gap in found if writers >= FULL * most]
    writers = statistics.fmean(writers for writers, _ in full)
    lengths = statistics.fmean(prompt_tokens(trace) + output_tokens(trace) / 2 for trace in traces)
    return [
        StepSample(
            prefill_tokens=0,
            decode_seqs=writers,
            context_tokens=writers * lengths,
            seconds=statistics.median(gap for _, gap in full),
            n=len(full),
        )
    ]


def _prompts_among_others(users: int, traces: Sequence[RequestTrace]) -> list[StepSample]:
    """Steps with a prompt in them, from how long they hold up the answers of all others.

    A step that takes t instead of the usual u delays every token behind it by t − u. The gap itself may be shorter than
    t: where the host prepares one step ahead, a long step shows in two gaps. A prompt whose way crosses that of another
    is left out, and so is one that nobody was there to see.
    """
    if not FEW[0] <= users <= FEW[1]:
        return []
    usual_s = statistics.median(gap for trace in traces for gap in itl_s(trace))
    ordered = sorted(traces, key=lambda trace: trace.chunk_s[0])
    firsts = [trace.chunk_s[0] for trace in ordered]
    found: dict[int, list[tuple[float, RequestTrace, int]]] = defaultdict(list)
    for at, trace in enumerate(ordered):
        start_s, first_s = trace.scheduled_s, trace.chunk_s[0]
        begun = [other.scheduled_s for other in ordered[at + 1 : at + users] if other.scheduled_s < first_s]
        if begun or (at and firsts[at - 1] > start_s):
            continue
        gaps = [
            gap for other in ordered if other is not trace and (gap := _held_up_s(other, start_s, first_s, usual_s))
        ]
        if gaps:
            found[trace.target_prompt_tokens].append((statistics.median(gaps), trace, len(gaps)))
    samples = []
    for group in found.values():
        others = statistics.median(num for _, _, num in group)
        samples.append(
            StepSample(
                prefill_tokens=statistics.median(prompt_tokens(trace) for _, trace, _ in group),
                decode_seqs=others,
                context_tokens=others * statistics.fmean(prompt_tokens(t) + output_tokens(t) / 2 for t in traces),
                seconds=statistics.median(gap for gap, _, _ in group),
                n=len(group),
            )
        )
    return samples


def _held_up_s(trace: RequestTrace, start_s: float, end_s: float, usual_s: float) -> float | None:
    """How long the one unusual step of this span was, judged by this answer; ``None`` where it does not cover it."""
    chunks = trace.chunk_s
    if chunks[0] >= start_s or chunks[-1] <= end_s + SMEAR_S:
        return None
    first = bisect.bisect_right(chunks, start_s) - 1
    last = bisect.bisect_right(chunks, end_s + SMEAR_S) - 1
    return max(usual_s, chunks[last] - chunks[first] - (last - first - 1) * usual_s)


def _profile(
    name: str, lengths: Sequence[int], answer: int, users: int, *, min_requests: int | None = None
) -> TrafficProfile:
    return TrafficProfile(
        id=f"calibration: {name}",
        lengths=tuple(LengthClass(prompt_tokens=tokens, weight=1.0) for tokens in lengths),
        output_tokens=answer,
        loads=(Load(concurrency=users),),
        seconds_per_load=SHORTEST_S,
        min_requests_per_load=min_requests or max(4, users),
    )
