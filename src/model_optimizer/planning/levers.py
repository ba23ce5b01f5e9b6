"""What would make an infeasible SLO feasible: one change at a time, those that cost nothing first, then by price."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from model_optimizer.kb import query
from model_optimizer.planning import devices
from model_optimizer.planning.choose import Rates, ranked, rates_of, verdicts
from model_optimizer.planning.options import options_on
from model_optimizer.planning.promises import predicted
from model_optimizer.planning.question import Found, Limits, Question
from model_optimizer.records.fleet import Lever
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.sizing.speed import Mix
from model_optimizer.units import format_seconds

_COUNTS = (2, 4, 8)
_SHORTEST_PROMPT = 16.0


def levers(ask: Question, gpus: Sequence[GpuSpec], limits: Limits, nearest: Found | None) -> tuple[Lever, ...]:
    """Levers for a request that nothing keeps on these GPUs. ``nearest``: the find that comes closest, if any fits."""
    found: list[Lever | None] = [_scheme(ask, gpus, limits)]
    if nearest is not None:
        found += [_concurrency(ask, nearest), _context(ask, nearest)]
    found += [_more_gpus(ask, gpus, limits), _other_gpu(ask, gpus)]
    known = [lever for lever in found if lever is not None]
    known.sort(key=lambda lever: lever.usd_per_hour or 0.0)
    if nearest is not None:
        known.append(_limit(ask, nearest))
    return tuple(known)


def _free(ask: Question) -> Question:
    """The same question without the restriction to some engines and schemes."""
    free = copy.copy(ask)
    free.engines, free.schemes, free.kv_schemes = (), (), ()
    return free


def _best(ask: Question, gpu: GpuSpec, limits: Limits) -> Found | None:
    """The best find on that GPU that keeps the SLO."""
    rates = rates_of(ask, gpu.id, query.electricity(ask.prices))
    order = ranked(ask, options_on(ask, gpu, limits).found, rates)
    return order[0].found if order and order[0].standing[0] else None


def _result(ask: Question, found: Found) -> str:
    one = found.steady.at(1)
    users = f"up to {found.users} user{'s' if found.users > 1 else ''} a replica" if ask.slo.latency_limits else ""
    return ", ".join(
        part
        for part in (
            f"predicted to keep the SLO: TTFT {format_seconds(one.ttft_s)}, TPOT {format_seconds(one.tpot_s)} "
            "for one user",
            users,
        )
        if part
    )


def _scheme(ask: Question, gpus: Sequence[GpuSpec], limits: Limits) -> Lever | None:
    if not (ask.schemes or ask.engines or ask.kv_schemes) or len(gpus) != 1:
        return None
    found = _best(_free(ask), gpus[0], limits)
    if found is None:
        return None
    return Lever(kind="scheme", change=f"take {found.label}", result=_result(ask, found))


def _concurrency(ask: Question, nearest: Found) -> Lever | None:
    """Fewer users than the load at which the SLO is asked for."""
    if not nearest.users:
        return None
    replicas = max(1, (nearest.gpus_given or nearest.split.num_gpus) // nearest.split.num_gpus)
    users = nearest.users * replicas
    rate = nearest.steady.at(nearest.users).request_rate_per_s * replicas
    return Lever(
        kind="concurrency",
        change=f"ask for it at no more than {users} users at once ({rate:.2g} requests/s)",
        result=f"{nearest.label} is predicted to keep every latency limit up to there, then {nearest.binding} binds",
    )


def _context(ask: Question, nearest: Found) -> Lever | None:
    """Shorter prompts, where the first token (or the whole answer) is what comes too late for one user."""
    if nearest.users or not any(limit.metric in ("ttft", "e2e") for limit in ask.slo.latency_limits):
        return None

    def keeps(longest: float) -> bool:
        mix = Mix(tuple((min(prompt, longest), answer, share) for prompt, answer, share in ask.mix.classes))
        steady = nearest.steady.replica.steady(mix)
        speed = steady.at(1)
        values = ((limit, predicted(limit, steady, speed, 1)) for limit in ask.slo.latency_limits)
        return all(value is None or value <= limit.limit for limit, value in values)

    if not keeps(_SHORTEST_PROMPT):
        return None
    low, high = _SHORTEST_PROMPT, max(prompt for prompt, _, _ in ask.mix.classes)
    while high - low > 16:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return Lever(
        kind="context",
        change=f"send no prompt longer than {int(low)} tokens (now up to {ask.mix.prompt_at(1.0):.0f})",
        result=f"{nearest.label} is predicted to keep the SLO for one user",
    )


def _more_gpus(ask: Question, gpus: Sequence[GpuSpec], limits: Limits) -> Lever | None:
    """The fewest of the same GPU that keep it."""
    if len(gpus) != 1:
        return None
    gpu, hour = gpus[0], query.usd_per_hour(gpus[0].id, ask.prices)
    for count in _COUNTS:
        if max(limits.replica, limits.given or 1) < count <= devices.gpus_in_a_machine(gpu):
            found = _best(ask, gpu, Limits(count, count))
            if found is not None:
                return Lever(
                    kind="more_gpus",
                    change=f"take {count} of them: {found.label}",
                    result=_result(ask, found),
                    usd_per_hour=hour.value * count if hour is not None else None,
                )
    return None


def _other_gpu(ask: Question, gpus: Sequence[GpuSpec]) -> Lever | None:
    """The cheapest GPU whose fewest keep it; looked for by price, so the search ends at the first that nothing can
    undercut.
    """
    here = {gpu.id for gpu in gpus}
    priced = [(rates_of(ask, gpu.id, query.electricity()), gpu) for gpu in query.gpus() if gpu.id not in here]
    known = sorted(((r.usd_per_hour.value, r, gpu) for r, gpu in priced if r.usd_per_hour), key=lambda row: row[0])
    best: tuple[float, Found] | None = None
    for hour, rates, gpu in known:
        if best is not None and hour >= best[0]:
            break
        found = _cheapest(ask, gpu, rates)
        if found is not None:
            cost = hour * found.replicas_kept(ask.slo, ask.at) * found.split.num_gpus
            best = (cost, found) if best is None or cost < best[0] else best
    if best is None:
        return None
    cost, found = best
    count = found.replicas_kept(ask.slo, ask.at) * found.split.num_gpus
    title = f"{count} × {found.gpu.title}" if count > 1 else f"a {found.gpu.title}"
    return Lever(
        kind="other_gpu",
        change=f"take {title}: {found.label}",
        result=f"{_result(ask, found)}; about ${cost:.2f} an hour",
        usd_per_hour=cost,
    )


def _cheapest(ask: Question, gpu: GpuSpec, rates: Rates) -> Found | None:
    """The find on that GPU that keeps the SLO with the fewest GPUs; among those the best."""
    order = ranked(ask, options_on(ask, gpu, Limits(devices.gpus_in_a_machine(gpu), brief=True)).found, rates)
    keeping = [one.found for one in order if one.standing[0]]
    return min(keeping, key=lambda f: f.replicas_kept(ask.slo, ask.at) * f.split.num_gpus, default=None)


def _limit(ask: Question, nearest: Found) -> Lever:
    """What the nearest option would keep."""
    missed = [check for check in verdicts(ask, nearest) if check.ok is False]
    loosened = ", ".join(f"{check.name} to {check.found.removesuffix(' predicted')}" for check in missed)
    return Lever(
        kind="limit",
        change=f"loosen {loosened}" if loosened else "loosen the SLO",
        result=f"{nearest.label} is predicted to keep that",
    )
