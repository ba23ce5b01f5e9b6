"""The winner's settings under the worst that they allow: see loadgen/stress.py."""

from __future__ import annotations

from model_optimizer.engines import ENGINES
from model_optimizer.errors import StageFailure
from model_optimizer.loadgen.drive import Target
from model_optimizer.loadgen.stress import run_stress
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.tuning import StressResult
from model_optimizer.stages.context import Context, Work
from model_optimizer.stages.failing import as_failure
from model_optimizer.stages.serving import served

NAME = "stress"
VERSION = 1
OBSERVES = True
OUTPUT = StressResult


class Input(Record):
    """``slots`` requests at once, each of this many prompt and output tokens."""

    artifact: Artifact
    candidate: Candidate
    slots: int
    prompt_tokens: int
    output_tokens: int
    phase_s: float = 120.0


def tools(inputs: Input) -> tuple[str, ...]:
    """The candidate's engine."""
    return (ENGINES[inputs.candidate.engine].TOOL,)


def run(ctx: Context, inputs: Input, work: Work) -> StressResult:
    """A server that dies is a result: the settings do not pass."""
    engine = ENGINES[inputs.candidate.engine]
    try:
        with (
            ctx.store.lock("measuring"),
            served(ctx, inputs.candidate, inputs.artifact, work, concurrency=inputs.slots) as server,
        ):
            done = run_stress(
                Target(base_url=server.url),
                prompt_tokens=inputs.prompt_tokens,
                output_tokens=inputs.output_tokens,
                slots=inputs.slots,
                emit=ctx.emit,
                phase_s=inputs.phase_s,
            )
            preemptions = engine.gauges(server.metrics_text()).preemptions
            server.check()
            peak = server.stats().peak_memory_bytes
    except StageFailure as failure:
        told = as_failure(failure, inputs.candidate.engine)
        return StressResult(passed=False, phases={}, num_requests=0, num_errors=0, failure=told)
    return StressResult(
        passed=done.passed,
        phases=done.phases,
        num_requests=done.num_requests,
        num_errors=done.num_errors,
        preemptions=preemptions,
        peak_memory_bytes=peak,
    )
