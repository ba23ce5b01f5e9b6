"""Tuning: prune, seed, calibrate, simulate, search, bound; then stress and confirm the winner against the default.

Decision 10 says why it is done this way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from model_optimizer.records.tuning import Boundary, Confirmation, Trial, TrialRun, Tuning, TuningSpec
from model_optimizer.records.workload import SLO, TrafficProfile
from model_optimizer.stages.context import Context
from model_optimizer.stages.tuner import Subject, Tuner
from model_optimizer.tuning.decide import confirm, held, ranked
from model_optimizer.tuning.shapes import held_out_shapes

LEG_SHARE = 0.9
"""What a repeat takes of a trial's time: it knows where the boundary is."""

STRESS_SHARE = 0.8


def tune(
    ctx: Context,
    subjects: Sequence[Subject],
    traffic: TrafficProfile,
    slo: SLO,
    spec: TuningSpec,
    saved: Callable[[tuple[Tuning, ...]], None],
) -> tuple[Tuning, ...]:
    """Tune the first subject and its rivals; the first one's default is what the winner is confirmed against.

    All defaults are measured first; the search then goes to the subject that holds most, for as long as leaves time to
    confirm. Ctrl-C ends it at any time: what was proven so far has been handed to ``saved``, and the interruption goes
    on to the caller. The tunings come back in the order of ``subjects``.
    """
    deadline = time.monotonic() + spec.budget.wall
    tunings: dict[int, Tuning] = {}

    def save(number: int) -> Callable[[Tuning], None]:
        def one(tuning: Tuning) -> None:
            tunings[number] = tuning
            saved(tuple(tunings[at] for at in sorted(tunings)))

        return one

    tuners = [Tuner(ctx, subject, traffic, slo, spec, save(at)) for at, subject in enumerate(subjects)]
    try:
        for tuner in tuners:
            tuner.default()
        best = max(tuners, key=_promise)
        best.search(deadline - (LEG_SHARE * len(spec.order) + STRESS_SHARE) * best.trial_s)
        for tuner in tuners:
            tuner.conclude()
        _prove(tuners[0], best, traffic, spec, deadline)
    except KeyboardInterrupt:
        for tuner in tuners:
            tuner.conclude(ended="interrupted: the same line goes on from here")
        raise
    return tuple(tuner.tuning for tuner in tuners)


def _promise(tuner: Tuner) -> float:
    """What its default holds; before anything is measured to hold, what is left counts little."""
    return max((held(t.boundary) for t in tuner.tuning.trials), default=0.0)


def _prove(reference: Tuner, best: Tuner, traffic: TrafficProfile, spec: TuningSpec, deadline: float) -> None:
    """Stress the winner, taking the next best where it does not pass; then confirm it against the defaults."""
    for candidate in ranked(best.tuning.trials):
        passed = best.stress(candidate.settings, _slots(candidate))
        best.conclude_with(candidate, stress=passed)
        if passed.passed:
            break
    winner = best.tuning.best
    if winner is None:
        return
    if best is reference and winner.number == 0:
        best.conclude_with(winner, ended=f"{best.tuning.ended}; nothing held more than the default".lstrip("; "))
        return
    arms = {"A": (reference, reference.tuning.trials[0]), "B": (best, winner), "C": (best, best.tuning.trials[0])}
    if best is reference or winner.number == 0:
        del arms["C"]
    order, runs = _legs(arms, traffic, spec, deadline, best.trial_s)
    best.conclude_with(
        winner,
        reference=reference.label,
        confirmation=_confirmation(order, arms, runs, "A"),
        over_own_default=_confirmation(order, arms, runs, "C") if runs.get("C") else None,
    )


def _legs(
    arms: dict[str, tuple[Tuner, Trial]], traffic: TrafficProfile, spec: TuningSpec, deadline: float, each_s: float
) -> tuple[str, dict[str, list[TrialRun]]]:
    """Interleaved repeats, with other shapes of traffic in each arm's first. One of each arm is measured in any case;
    what the time does not allow beyond that is left out.
    """
    holds = held(arms["A"][1].boundary) or held(arms["B"][1].boundary)
    shapes = held_out_shapes(traffic, holds, spec)
    runs: dict[str, list[TrialRun]] = {letter: [] for letter in arms}
    done = ""
    for number, letter in enumerate(spec.order, start=1):
        if letter not in arms or (runs[letter] and time.monotonic() + each_s > deadline):
            continue
        tuner, chosen = arms[letter]
        wanted = () if runs[letter] else shapes
        runs[letter].append(tuner.leg(chosen.settings, chosen.boundary, number, wanted))
        done += letter
    return done, runs


def _confirmation(
    order: str, arms: dict[str, tuple[Tuner, Trial]], runs: dict[str, list[TrialRun]], default: str
) -> Confirmation:
    """The winner's repeats against those of this arm."""
    a, b = runs[default], runs["B"]
    return confirm(
        "".join(letter for letter in order if letter in (default, "B")),
        [run.boundary or Boundary() for run in a],
        [run.boundary or Boundary() for run in b],
        [leg for run in a if (leg := arms[default][0].traces(run)) is not None],
        [leg for run in b if (leg := arms["B"][0].traces(run)) is not None],
        _compared(a, b),
    )


def _compared(a: Sequence[TrialRun], b: Sequence[TrialRun]) -> dict[str, dict[str, tuple[float, float]]]:
    """P99 of TTFT and TPOT on the held-out shapes, seconds: (default, winner)."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for shape in a[0].held_out if a and b else {}:
        one, other = a[0].held_out[shape], b[0].held_out.get(shape)
        if other is None:
            continue
        pairs = {"ttft_p99": (one.ttft_s, other.ttft_s), "tpot_p99": (one.tpot_s, other.tpot_s)}
        found[shape] = {name: (x.p99, y.p99) for name, (x, y) in pairs.items() if x is not None and y is not None}
    return found


def _slots(winner: Trial) -> int:
    """As many as the settings allow, or as were in use at the boundary where the engine decides."""
    for name in ("max_num_seqs", "n_parallel", "max_running_requests"):
        if name in winner.settings:
            return int(winner.settings[name])
    points = winner.boundary.points if winner.boundary is not None else ()
    in_flight = [p.result.request_rate_per_s * p.result.e2e_s.mean for p in points if p.result.e2e_s is not None]
    return max(4, round(2 * max(in_flight, default=2.0)))
