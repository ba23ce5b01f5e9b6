"""The product, top to bottom."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from model_optimizer.errors import ModelOptimizerError, StageFailure
from model_optimizer.evaluators import logits
from model_optimizer.metrics import goodput
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.candidate import Candidate, Plan, PlannedCandidate
from model_optimizer.records.measurement import AccuracyScore, Measurement
from model_optimizer.records.run import Baseline, Reference, RunManifest, RunSpec
from model_optimizer.records.tuning import TuningSpec
from model_optimizer.records.verdict import Check, Outcome, Verdict
from model_optimizer.records.workload import SLO
from model_optimizer.stages import build, loadtest, reference, validate
from model_optimizer.stages.choose import choose, nearest
from model_optimizer.stages.context import Context
from model_optimizer.stages.failing import as_failure
from model_optimizer.stages.finalists import tune_finalists
from model_optimizer.stages.installed import installed_facts
from model_optimizer.stages.intake import Opened, open_model
from model_optimizer.stages.plan import make_plan
from model_optimizer.store.journal import now


def optimize(spec: RunSpec, ctx: Context) -> RunManifest:
    """From a request to a winner with its evidence. Running it again continues where it stopped."""
    with _recorded(ctx):
        opened, plan = _planned(spec, ctx)
        base = baseline(ctx, spec, opened, plan.baseline)
        ctx.update(baseline=base)

        judge_all(ctx, spec, opened, base, plan.candidates)
        if spec.tuning is not None:
            tuned = tune_finalists(ctx, spec, opened, ctx.manifest.verdicts, spec.tuning)
            for verdict in tuned[:1]:  # the best of them, under all loads of the request
                _conclude(ctx, judge(ctx, spec, opened, base.reference, verdict.candidate))
        _finish(ctx, spec)
    return ctx.manifest


def tune_only(spec: RunSpec, ctx: Context) -> RunManifest:
    """From a request to the settings that hold the most load: gate and search, without baseline and load test."""
    with _recorded(ctx):
        opened, plan = _planned(spec, ctx)
        said = reference_outputs(ctx, spec, opened, plan.baseline)
        passed = []
        for item in plan.candidates[: spec.budget.candidates]:
            gated = gate(ctx, spec, opened, said, item.candidate)
            if gated.outcome == "not_tried":
                passed.append(gated)
            else:
                _conclude(ctx, gated)
        for verdict in tune_finalists(ctx, spec, opened, passed, spec.tuning or TuningSpec()):
            _conclude(ctx, verdict)
        _finish(ctx, spec)
    return ctx.manifest


def _planned(spec: RunSpec, ctx: Context) -> tuple[Opened, Plan]:
    opened = open_model(ctx, spec.model)
    ctx.update(model=opened.model)
    facts = installed_facts(ctx)
    plan = make_plan(spec, opened.model, ctx.host, installed=ctx.toolbox.installed(), facts=facts)
    ctx.update(plan=plan)
    ctx.emit("planned", candidates=[p.candidate.label for p in plan.candidates], refused=len(plan.refused))
    return opened, plan


@contextlib.contextmanager
def _recorded(ctx: Context) -> Iterator[None]:
    """However it ends, the manifest says so."""
    try:
        yield
    except KeyboardInterrupt:
        ctx.update(status="interrupted", finished_at=now())
        raise
    except ModelOptimizerError as error:
        ctx.update(status="failed", finished_at=now(), error=error.as_dict())
        raise


def _finish(ctx: Context, spec: RunSpec) -> None:
    winner = choose(ctx.manifest.verdicts, spec.objective)
    close = None if winner else nearest(ctx.manifest.verdicts)
    ctx.update(
        winner=winner and winner.candidate.id,
        winner_artifact=winner and winner.artifact,
        nearest=close and close.candidate.id,
        status="finished",
        finished_at=now(),
    )


def _conclude(ctx: Context, verdict: Verdict) -> None:
    """One more verdict, saved as soon as it is known."""
    ctx.update(verdicts=(*ctx.manifest.verdicts, verdict))
    ctx.emit("verdict", candidate=verdict.candidate.label, outcome=verdict.outcome, reason=verdict.reason)


def reference_outputs(ctx: Context, spec: RunSpec, opened: Opened, candidate: Candidate) -> Reference | None:
    """What the unoptimised model says, for the gate; ``None`` where the request leaves the gate out."""
    if not spec.validate_accuracy:
        return None
    return ctx.run(reference, reference.inputs(opened.reference, candidate, spec.accuracy), subject="baseline")


def baseline(ctx: Context, spec: RunSpec, opened: Opened, candidate: Candidate) -> Baseline:
    """The unoptimised model under the same prompts and definitions, and its outputs for later comparison."""
    said = reference_outputs(ctx, spec, opened, candidate)
    # Served one request at a time, so heavier loads would only measure its queue.
    lightest = spec.model_copy(update={"traffic": spec.traffic.model_copy(update={"loads": spec.traffic.loads[:1]})})
    measured = measure(ctx, lightest, candidate, opened.reference, subject="baseline")
    return Baseline(candidate=candidate, measurement=measured, reference=said)


def judge_all(
    ctx: Context, spec: RunSpec, opened: Opened, base: Baseline, planned: tuple[PlannedCandidate, ...]
) -> None:
    """Judge candidates best first until the budget ends; each verdict is saved as soon as it is known."""
    started = time.monotonic()
    for number, item in enumerate(planned):
        stop = _budget_end(spec, number, time.monotonic() - started, ctx.manifest.verdicts)
        if stop:
            verdict = Verdict(candidate=item.candidate, outcome="not_tried", reason=stop)
        else:
            verdict = judge(ctx, spec, opened, base.reference, item.candidate)
        _conclude(ctx, verdict)


def gate(ctx: Context, spec: RunSpec, opened: Opened, said: Reference | None, candidate: Candidate) -> Verdict:
    """Build the candidate and compare it with the reference: ``not_tried`` (under load) where it passes."""
    score: AccuracyScore | None = None
    checks: tuple[Check, ...] = ()
    artifact: Artifact | None = None
    try:
        artifact = opened.source
        for step in candidate.steps:
            artifact = ctx.run(
                build, build.inputs(artifact, step, opened.model), subject=_step_name(candidate, step.transform)
            )
        if said is not None:
            inputs = validate.Input(
                artifact=artifact, candidate=candidate, reference=said, num_prompts=spec.accuracy.num_prompts
            )
            score = ctx.run(validate, inputs, subject=candidate.label)
            checks = logits.judge(score, spec.accuracy)
    except StageFailure as failure:  # one candidate failing is a result, not the end of the run
        return _verdict(candidate, "failed", checks, score, artifact, failure=failure)
    lost = any(check.ok is False for check in checks)
    return _verdict(candidate, "loses_accuracy" if lost else "not_tried", checks, score, artifact)


def judge(ctx: Context, spec: RunSpec, opened: Opened, said: Reference | None, candidate: Candidate) -> Verdict:
    """One candidate: build it, compare it with the reference, put it under load. Cheap gates first."""
    gated = gate(ctx, spec, opened, said, candidate)
    artifact = gated.artifact
    if gated.outcome != "not_tried" or artifact is None:
        return gated
    try:
        measured = measure(ctx, spec, candidate, artifact, subject=candidate.label)
    except StageFailure as failure:
        return _verdict(candidate, "failed", gated.checks, gated.accuracy, artifact, failure=failure)
    # On a GPU machine the memory that counts is the GPU's, which is not measured yet: no limit is judged by another.
    memory = measured.server.peak_memory_bytes if measured.server and not ctx.host.gpus else None
    return _measured(candidate, spec.slo, gated.checks, gated.accuracy, artifact, measured, memory)


def measure(ctx: Context, spec: RunSpec, candidate: Candidate, artifact: Artifact, *, subject: str) -> Measurement:
    """The load test, its goodput worked out for the request's SLO."""
    inputs = loadtest.Input(artifact=artifact, candidate=candidate, traffic=spec.traffic)
    measured = ctx.run(loadtest, inputs, subject=subject)
    traces = loadtest.read_traces(ctx, measured)
    loads = tuple(goodput.with_goodput(result, traces[str(result.load)], spec.slo) for result in measured.loads)
    return measured.model_copy(update={"loads": loads})


def _measured(
    candidate: Candidate,
    slo: SLO,
    checks: tuple[Check, ...],
    score: AccuracyScore | None,
    artifact: Artifact,
    measured: Measurement,
    memory: int | None,
) -> Verdict:
    checks = (*checks, *goodput.judge(measured.at(slo.at), slo, peak_memory_bytes=memory))
    best = goodput.best_load(measured.loads, slo, peak_memory_bytes=memory)
    missed = any(check.ok is False for check in checks)
    verdict = _verdict(candidate, "misses_slo" if missed else "meets_slo", checks, score, artifact)
    return verdict.model_copy(
        update={
            "measurement": measured,
            "best_load": best and str(best.load),
            "goodput_per_s": best and best.goodput_per_s,
        }
    )


def _verdict(
    candidate: Candidate,
    outcome: Outcome,
    checks: tuple[Check, ...],
    score: AccuracyScore | None,
    artifact: Artifact | None,
    failure: StageFailure | None = None,
) -> Verdict:
    missed = [f"{c.name}: {c.found}, limit {c.limit}" for c in checks if c.ok is False]
    told = failure and as_failure(failure, candidate.engine)
    reason = "; ".join(missed) or "every limit is kept"
    if told:
        reason = f"{told.what}: {told.finding.title if told.finding else told.cause}"
    return Verdict(
        candidate=candidate,
        outcome=outcome,
        reason=reason,
        checks=checks,
        accuracy=score,
        artifact=artifact,
        artifact_bytes=artifact and artifact.size_bytes,
        failure=told,
    )


def _budget_end(spec: RunSpec, tried: int, seconds: float, verdicts: tuple[Verdict, ...]) -> str | None:
    budget = spec.budget
    if tried >= budget.candidates:
        return f"the budget of {budget.candidates} candidates is used up"
    if budget.wall is not None and seconds > budget.wall:
        return f"the budget of {budget.wall:.0f} s is used up"
    if budget.first_that_meets and any(verdict.outcome == "meets_slo" for verdict in verdicts):
        return "an earlier candidate meets the SLO and the request asks for the first that does"
    return None


def _step_name(candidate: Candidate, transform: str) -> str:
    return f"{candidate.scheme} ({transform})"
