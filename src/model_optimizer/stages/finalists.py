"""From candidates that passed the gate to their tuned settings: which are tuned, as what, and with which verdict."""

from __future__ import annotations

from collections.abc import Sequence

from model_optimizer.records.candidate import Candidate
from model_optimizer.records.run import RunSpec
from model_optimizer.records.tuning import Tuning, TuningSpec
from model_optimizer.records.verdict import Verdict
from model_optimizer.stages.choose import by_merit
from model_optimizer.stages.context import Context
from model_optimizer.stages.intake import Opened
from model_optimizer.stages.subject import subject_of
from model_optimizer.stages.tune import tune
from model_optimizer.tuning.decide import held

MOST = 3
"""Candidates whose default is measured; the search itself goes to one of them."""


def tune_finalists(
    ctx: Context, spec: RunSpec, opened: Opened, passed: Sequence[Verdict], tuning: TuningSpec
) -> list[Verdict]:
    """Tune the best of ``passed``; verdicts of what came out, best first, as candidates with their tuned settings.

    The winner is confirmed against the default settings of the unquantized candidate, or of the first where none is.
    """
    chosen = _in_order(by_merit(passed))
    if not chosen:
        return []
    subjects = [
        subject_of(ctx, spec, opened, verdict.candidate, verdict.artifact, tuning)
        for verdict in chosen
        if verdict.artifact is not None
    ]
    tunings = tune(ctx, subjects, spec.traffic, spec.slo, tuning, lambda so_far: ctx.update(tunings=so_far))
    found = [_verdict(tuning, verdict) for tuning, verdict in zip(tunings, chosen, strict=True)]
    return sorted(found, key=lambda verdict: verdict.goodput_per_s or 0.0, reverse=True)


def _in_order(passed: list[Verdict]) -> list[Verdict]:
    """The reference first: unquantized, in the best one's engine if it can; measured even where others are better."""
    plain = [v for v in passed if not v.candidate.steps and "quantization" not in v.candidate.engine_args]
    same = [v for v in plain if v.candidate.engine == passed[0].candidate.engine]
    reference = next(iter([*same, *plain]), None)
    if reference is None:
        return passed[:MOST]
    return [reference, *[v for v in passed if v is not reference][: MOST - 1]]


def _verdict(tuning: Tuning, before: Verdict) -> Verdict:
    """What the winner of this search holds, as a verdict on the candidate with those settings."""
    best = tuning.best
    if best is None:
        failed = next((t for t in tuning.trials if t.run is not None and t.run.failure is not None), None)
        return before.model_copy(
            update={
                "outcome": "failed"
                if failed and not any(t.outcome == "measured" for t in tuning.trials)
                else "misses_slo",
                "reason": "no settings that were tried kept the SLO at any load",
                "failure": failed.run.failure if failed is not None and failed.run is not None else None,
            }
        )
    unit = "requests/s" if tuning.spec.kind == "rate" else "users"
    default = held(tuning.default.boundary) if tuning.default is not None else 0.0
    reason = f"holds {held(best.boundary):.3g} {unit} within the SLO; the engine's default holds {default:.3g}"
    return before.model_copy(
        update={
            "candidate": _tuned(before.candidate, tuning),
            "outcome": "meets_slo",
            "reason": reason,
            "best_load": str(best.boundary.kept) if best.boundary is not None else None,
            "goodput_per_s": best.goodput_per_s,
        }
    )


def _tuned(candidate: Candidate, tuning: Tuning) -> Candidate:
    best = tuning.best
    settings = best.settings if best is not None else {}
    args = {**tuning.candidate.engine_args, **tuning.spec.fixed, **settings}
    return candidate.model_copy(update={"engine_args": args})
