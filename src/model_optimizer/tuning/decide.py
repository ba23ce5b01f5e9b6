"""Which trial wins, how well the simulation agreed, and whether the winner really beats the default."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from model_optimizer.records.tuning import Agreement, Boundary, Confirmation, Prediction, Proof, Trial
from model_optimizer.tuning.boundary import Leg, crossings, value_of

DRAWS = 1000


def held(found: Boundary | None) -> float:
    """The load at the boundary: where the margin is zero, else the heaviest that was kept; 0 where none was."""
    if found is None or found.kept is None:
        return 0.0
    return found.crossing if found.crossing is not None else value_of(found.kept)


def foreseen(predicted: Prediction) -> float:
    """The load at the predicted boundary, users or requests a second; 0 where no load was predicted to be kept."""
    return value_of(predicted.load) if predicted.load is not None else 0.0


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Measured trials that kept the SLO somewhere, best first: the highest load held; of equals, the earliest."""
    kept = [trial for trial in trials if trial.outcome == "measured" and held(trial.boundary) > 0]
    return sorted(kept, key=lambda trial: (-held(trial.boundary), trial.number))


def agreement(trials: Sequence[Trial]) -> Agreement | None:
    """Prediction against measurement over the trials that have both; ``None`` where none has.

    The default's is left out: the step times were fitted on it.
    """
    judged = [t for t in trials if t.role != "default"]
    pairs = [(foreseen(t.predicted), held(t.boundary)) for t in judged if t.predicted and t.boundary]
    if not pairs:
        return None
    points = [
        (said, measured)
        for t in judged
        if t.boundary is not None
        for said in t.predicted_points
        for measured in t.boundary.points
        if said.load == measured.load
    ]
    late = [
        abs(said.ttft_p99_s - measured.result.ttft_s.p99) / measured.result.ttft_s.p99
        for said, measured in points
        if said.ttft_p99_s is not None and measured.result.ttft_s is not None
    ]
    errors = [abs(p - m) / m for p, m in pairs if m > 0]
    passes = [measured for said, measured in points if said.kept]
    return Agreement(
        num_trials=len(pairs),
        goodput_error_p50=statistics.median(errors) if errors else None,
        ttft_p99_error_p50=statistics.median(late) if late else None,
        rank=spearman([p for p, _ in pairs], [m for _, m in pairs]),
        false_passes=sum(not measured.kept for measured in passes),
        num_passes=len(passes),
    )


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Rank correlation (Spearman, 1904), ties at their mean rank; ``None`` below three pairs or without variation."""
    if len(a) < 3 or len(set(a)) < 2 or len(set(b)) < 2:
        return None
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def confirm(
    order: str,
    default: Sequence[Boundary],
    winner: Sequence[Boundary],
    default_legs: Sequence[Leg],
    winner_legs: Sequence[Leg],
    held_out: dict[str, dict[str, tuple[float, float]]],
    *,
    seed: int = 0,
) -> Confirmation:
    """The ratio of the loads held, with its 95 % interval: repeats are redrawn first, then requests inside each.

    ``better`` and ``worse`` only where the interval leaves 1 out; ``not enough evidence`` where an arm has no boundary
    to speak of (nothing kept, or nothing broken).
    """
    ratio, ci95 = None, None
    at_default, at_winner = [held(b) for b in default], [held(b) for b in winner]
    if at_default and at_winner and all(at_default) and all(at_winner):
        ratio = _geometric(at_winner) / _geometric(at_default)
        a = crossings(default_legs, draws=DRAWS, seed=seed) if default_legs else []
        b = crossings(winner_legs, draws=DRAWS, seed=seed + 1) if winner_legs else []
        ratios = [y / x for x, y in zip(a, b, strict=False) if x is not None and y is not None]
        if len(ratios) >= DRAWS / 2:
            low, high = np.percentile(ratios, [2.5, 97.5])
            ci95 = (float(low), float(high))
    return Confirmation(
        order=order,
        default=tuple(default),
        winner=tuple(winner),
        ratio=ratio,
        ratio_ci95=ci95,
        verdict=_verdict(at_default, at_winner, ci95),
        held_out=held_out,
    )


def _verdict(default: Sequence[float], winner: Sequence[float], ci95: tuple[float, float] | None) -> Proof:
    if winner and all(winner) and default and not any(default):
        return "better"  # the default kept the SLO at no load at all
    if ci95 is None:
        return "not enough evidence"
    if ci95[0] > 1:
        return "better"
    return "worse" if ci95[1] < 1 else "no difference"


def _geometric(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [statistics.fmean(at for at, other in enumerate(ordered) if other == value) for value in values]
