"""Which regimes a server's numbers show. Thresholds and their reasons: docs/live-diagnosis.md.

Each ``_claim`` looks for one regime and gives the numbers that decided, or ``None``. Several may hold; ``ORDER`` says
which explains which: requests wait *because* the KV cache is full, not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from model_optimizer.records.live import Decider, Regime, Window
from model_optimizer.units import format_seconds, format_share

SUSTAINED_SHARE = 0.5  # of the looks: a burst that waits for one step is no queue
MIN_WAITING = 0.5
QUEUE_SHARE_OF_TTFT = 0.5
NOTICED_S = 0.1  # a TTFT below this is not worth explaining
KV_FULL = 0.9  # of the blocks: the scheduler keeps some back, so 1.0 is rarely seen
KV_ROOMY = 0.7
MIN_PREEMPTIONS = 3
PREEMPTED_SHARE = 0.05
ERROR_SHARE = 0.05
MIN_ERRORS = 3
PREFILL_SHARE = 0.5
ONE_AT_A_TIME = 1.5
STOOD_STILL_SHARE = 0.3
HALF_USED = 0.5
ONE_CORE = 0.9
GPU_LITTLE_USED = 0.6
STEP_TOO_LONG = 2.0
FEW_REQUESTS = 5
STALL_FACTOR = 3.0


class Claim(NamedTuple):
    """A regime that the numbers show."""

    regime: Regime
    confidence: float
    deciders: tuple[Decider, ...]


def claims(w: Window, *, slo_broken: bool = False, expected_step_s: float | None = None) -> tuple[Claim, ...]:
    """Every regime that holds, the one that explains the others first; empty where the numbers do not tell."""
    idle = _idle(w)
    if idle is not None:
        found = [claim for claim in (restarted(w), idle) if claim]
        return tuple(found)
    found = [claim for look in ORDER if (claim := look(w)) is not None]
    cpu, client = _cpu_bound(w, expected_step_s), (None if slo_broken else _client_bound(w))
    found += [claim for claim in (cpu, client) if claim is not None]
    rank = {"erroring": 0, "preempting": 2, "kv-bound": 3, "cpu-bound": 4, "queueing": 5, "client-bound": 7}
    crowded = any(claim.regime in ("preempting", "kv-bound", "queueing") for claim in found)

    def place(claim: Claim) -> float:
        # Clients that give up are the consequence of a queue, not its cause; errors and restarts explain the rest.
        if claim.regime == "erroring" and crowded and not w.num_restarts and not w.finished.get("error"):
            return 6
        return rank.get(claim.regime, 8)

    return tuple(sorted(found, key=place))


def conditions(w: Window, found: tuple[Claim, ...], broken: frozenset[str]) -> frozenset[str]:
    """What levers may ask for: names of circumstances, from the numbers, the regimes and the SLO's broken limits."""
    regimes = {claim.regime for claim in found}
    held = {
        "slots_full": slots_full(w),
        "kv_high": _at_least(w.kv_usage_max, KV_FULL),
        "kv_roomy": w.kv_usage_max is not None and w.kv_usage_max < KV_ROOMY,
        "prefill_heavy": "prefill-bound" in regimes,
        "decode_heavy": "decode-bound" in regimes,
        "prompts_stall_answers": _prompts_stall_answers(w),
        "cache_unused": w.prefix_hit_share is not None and w.prefix_hit_share < 0.05,
        "ttft_broken": "ttft" in broken,
        "itl_broken": bool({"itl", "tpot"} & broken),
        "restarted": w.num_restarts > 0,
        "aborts": bool(w.finished.get("abort")),
        "one_at_a_time": w.running_max is not None and w.running_max <= 1,
    }
    return frozenset(name for name, holds in held.items() if holds)


def slots_full(w: Window) -> bool:
    """True where the batch is at its limit: at the known number of slots, else steady although requests wait."""
    if w.running is None or w.running_max is None or w.running_min is None or not w.running_max:
        return False
    if w.slots:
        return w.running >= 0.9 * w.slots
    is_steady = w.running_max - w.running_min <= max(1.0, 0.1 * w.running_max)
    return is_steady and _at_least(w.waiting_share, 0.9) and not _at_least(w.kv_usage_max, KV_FULL)


def prefill_share(w: Window) -> float | None:
    """Share of the requests' (or the engine's) running time that went into prompts.

    From the engine's own seconds where it counts them; else TTFT less queue against the gaps between tokens.
    """
    if w.prompt_seconds is not None and w.generation_seconds is not None:
        summed = w.prompt_seconds + w.generation_seconds
        if summed > 0:
            return w.prompt_seconds / summed
    gaps = w.itl or w.tpot
    if w.ttft is None and w.itl is None:
        return None
    waited = w.queue.mean if w.queue else 0.0
    prompts = w.ttft.count * max(0.0, w.ttft.mean - waited) if w.ttft else 0.0
    answers = gaps.count * gaps.mean if gaps is not None and gaps is w.itl else None
    if answers is None and w.e2e is not None and w.ttft is not None:
        answers = w.e2e.count * max(0.0, w.e2e.mean - w.ttft.mean)
    return prompts / (prompts + answers) if answers is not None and prompts + answers > 0 else None


def error_share(w: Window) -> tuple[float, float] | None:
    """(Requests that ended badly, as a share of all that ended); ``None`` where nothing is known."""
    bad = sum(number for reason, number in w.finished.items() if reason in ("abort", "error"))
    every = max(sum(w.finished.values()), (w.requests_per_s or 0.0) * w.seconds)
    return (bad, bad / every) if every else None


def _idle(w: Window) -> Claim | None:
    moved = (w.generation_tokens_per_s, w.prompt_tokens_per_s, w.requests_per_s)
    if any(moved) or w.running_max or w.waiting_max:
        return None
    if w.running_max is None and all(value is None for value in moved):
        return None
    deciders = [_number("tokens generated", "0", "0")] if w.generation_tokens_per_s is not None else []
    if w.running_max is not None:
        deciders.append(_number("running requests, most", "0", "0"))
    return Claim("idle", 0.95 if w.running_max is not None and w.seconds >= 2 else 0.7, tuple(deciders))


def restarted(w: Window) -> Claim | None:
    """The server (or one of its engines) began anew while it was watched."""
    if not w.num_restarts:
        return None
    return Claim("erroring", 0.9, (_number("counters went back to zero", f"{w.num_restarts} times", "never"),))


def _erroring(w: Window) -> Claim | None:
    bad = error_share(w)
    if bad is None or bad[0] < MIN_ERRORS or bad[1] < ERROR_SHARE:
        return restarted(w)
    by_reason = ", ".join(f"{n:.0f} {reason}" for reason, n in w.finished.items() if reason in ("abort", "error"))
    decider = _number("requests that ended badly", f"{format_share(bad[1])} ({by_reason})", f"≥ {ERROR_SHARE:.0%}")
    anew = restarted(w)
    return Claim("erroring", 0.9, (decider, *(anew.deciders if anew else ())))


def _preempting(w: Window) -> Claim | None:
    if w.preemptions is None or w.preemptions < MIN_PREEMPTIONS:
        return None
    ended = (w.requests_per_s or 0.0) * w.seconds
    if ended and w.preemptions / ended < PREEMPTED_SHARE:
        return None
    deciders = [_number("preemptions", f"{w.preemptions:.0f} in {w.seconds:.0f} s", f"≥ {MIN_PREEMPTIONS}")]
    if w.kv_usage_max is not None:
        deciders.append(_number("KV cache in use, most", format_share(w.kv_usage_max), f"≥ {KV_FULL:.0%}"))
    return Claim("preempting", 0.95 if _at_least(w.kv_usage_max, KV_FULL) else 0.8, tuple(deciders))


def _kv_bound(w: Window) -> Claim | None:
    if not _at_least(w.kv_usage, KV_FULL) or not _waits(w):
        return None
    deciders = (
        _number("KV cache in use", format_share(w.kv_usage or 0.0), f"≥ {KV_FULL:.0%}"),
        _number("waiting requests", f"{w.waiting:.1f}", f"≥ {MIN_WAITING}"),
    )
    return Claim("kv-bound", 0.9, deciders)


def _queueing(w: Window) -> Claim | None:
    by_time = _queue_share(w)
    deciders = []
    if _waits(w):
        seen = f"{w.waiting:.1f}, in {w.waiting_share:.0%} of the looks"
        deciders.append(_number("waiting requests", seen, f"≥ {MIN_WAITING}, in {SUSTAINED_SHARE:.0%}"))
    if by_time is not None and by_time >= QUEUE_SHARE_OF_TTFT and w.ttft is not None and w.queue is not None:
        told = f"{format_seconds(w.queue.mean)} of {format_seconds(w.ttft.mean)} ({by_time:.0%})"
        deciders.append(_number("queue time in TTFT, means", told, f"≥ {QUEUE_SHARE_OF_TTFT:.0%}"))
    if not deciders:
        return None
    if slots_full(w):
        cap = f" of {w.slots:.0f}" if w.slots else ", steady while others wait"
        deciders.append(_number("running requests", f"{w.running:.1f}{cap}", "at the limit"))
    return Claim("queueing", _sure(w, 0.95 if len(deciders) > 1 else 0.8), tuple(deciders))


def _client_bound(w: Window) -> Claim | None:
    """Under-used: nothing waits, and at most about one request at a time, or the server stands still in between.

    Gauges and Little's law must both say so: either alone misses what runs inside one long step.
    """
    if w.running is None or w.waiting_max or w.busy_share is None or _at_least(w.kv_usage_max, KV_ROOMY):
        return None
    if not (w.generation_tokens_per_s or w.prompt_tokens_per_s or w.requests_per_s):
        return None  # one long request, of which nothing was seen yet
    inside = max(w.running, w.in_system or 0.0)
    still = 1.0 - max(w.busy_share, min(1.0, w.in_system or 0.0))
    few = inside <= ONE_AT_A_TIME and (not w.slots or inside < HALF_USED * w.slots)
    if not few and still < STOOD_STILL_SHARE:
        return None
    cap = f" of {w.slots:.0f}" if w.slots else ""
    deciders = (
        _number("requests in the server", f"{inside:.1f}{cap}", f"≤ {ONE_AT_A_TIME}"),
        _number("time with nothing running", format_share(still), f"≥ {STOOD_STILL_SHARE:.0%}"),
        _number("waiting requests, most", "0", "0"),
    )
    return Claim("client-bound", 0.9 if still >= HALF_USED else 0.8 if still >= STOOD_STILL_SHARE else 0.6, deciders)


def _cpu_bound(w: Window, expected_step_s: float | None) -> Claim | None:
    """The GPU waits for the program that feeds it. Needs proof of that: on a CPU, full cores are the work."""
    if not _at_least(w.busy_share, 0.9):
        return None
    deciders, doubts = [], 0
    cores = w.scheduler_cores if w.scheduler_cores is not None else w.busiest_process_cores
    gpu = w.forward_share if w.forward_share is not None else w.gpu_busy
    if cores is not None and gpu is not None and cores >= ONE_CORE and gpu < GPU_LITTLE_USED:
        deciders.append(_number("cores of the busiest process", f"{cores:.2f}", f"≥ {ONE_CORE}"))
        deciders.append(_number("GPU busy", format_share(gpu), f"< {GPU_LITTLE_USED:.0%}"))
    step_s = 1.0 / w.steps_per_s if w.steps_per_s else None
    if expected_step_s and step_s is not None and step_s >= STEP_TOO_LONG * expected_step_s:
        told = f"{format_seconds(step_s)}, {format_seconds(expected_step_s)} expected for this batch"
        deciders.append(_number("time of a step", told, f"≥ {STEP_TOO_LONG:g} times"))
        doubts = 0 if len(deciders) > 1 else 1
    if not deciders:
        return None
    return Claim("cpu-bound", 0.6 if doubts else 0.85, tuple(deciders))


def _phase_bound(w: Window) -> Claim | None:
    share = prefill_share(w)
    if share is None:
        return None
    is_prefill = share >= PREFILL_SHARE
    deciders = [_number("time in prompts", format_share(share), f"{'≥' if is_prefill else '<'} {PREFILL_SHARE:.0%}")]
    if w.prompt_tokens_per_s is not None and w.generation_tokens_per_s is not None:
        told = f"{w.prompt_tokens_per_s:.0f} and {w.generation_tokens_per_s:.0f} a second"
        deciders.append(_number("prompt and answer tokens", told, "for comparison"))
    margin = abs(share - PREFILL_SHARE)
    sure = 0.9 if margin >= 0.2 else 0.75 if margin >= 0.1 else 0.55
    return Claim("prefill-bound" if is_prefill else "decode-bound", _sure(w, sure), tuple(deciders))


ORDER: tuple[Callable[[Window], Claim | None], ...] = (_erroring, _preempting, _kv_bound, _queueing, _phase_bound)


def _waits(w: Window) -> bool:
    return _at_least(w.waiting, MIN_WAITING) and _at_least(w.waiting_share, SUSTAINED_SHARE)


def _queue_share(w: Window) -> float | None:
    """Queue's part of the mean TTFT; ``None`` where it is not known or the TTFT is short anyway."""
    if w.ttft is None or w.queue is None or w.ttft.mean < NOTICED_S or w.queue.count < MIN_ERRORS:
        return None
    return min(1.0, w.queue.mean / w.ttft.mean)


def _prompts_stall_answers(w: Window) -> bool:
    """The slowest gaps are far longer than the usual one, by buckets that leave no doubt, while prompts come in."""
    if w.itl is None or not w.prompt_tokens_per_s or w.itl.p50.high is None:
        return False
    return w.itl.p99.low >= STALL_FACTOR * w.itl.p50.high


def _sure(w: Window, confidence: float) -> float:
    """Less sure where few requests speak."""
    seen = max((x.count for x in (w.ttft, w.e2e) if x is not None), default=FEW_REQUESTS)
    return confidence if seen >= FEW_REQUESTS else round(confidence - 0.15, 2)


def _at_least(value: float | None, limit: float) -> bool:
    return value is not None and value >= limit


def _number(name: str, found: str, threshold: str) -> Decider:
    return Decider(name=name, found=found, threshold=threshold)
