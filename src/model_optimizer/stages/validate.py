"""Validate: does the candidate still say what the reference says, in the engine that will serve it?"""

from __future__ import annotations

import shutil

from model_optimizer.engines import ENGINES
from model_optimizer.evaluators import generations, logits
from model_optimizer.loadgen.generate import generate
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.measurement import AccuracyScore
from model_optimizer.records.run import Reference
from model_optimizer.stages.context import Context, Work
from model_optimizer.stages.serving import served

NAME = "validate"
VERSION = 1
OBSERVES = False
OUTPUT = AccuracyScore


class Input(Record):
    """The limits are not part of it: judging is free, so changing a limit measures nothing again."""

    artifact: Artifact
    candidate: Candidate
    reference: Reference
    num_prompts: int


def tools(inputs: Input) -> tuple[str, ...]:
    """The candidate's engine, and the environment of the comparison."""
    return (ENGINES[inputs.candidate.engine].TOOL, logits.COMPARE_TOOL)


def run(ctx: Context, inputs: Input, work: Work) -> AccuracyScore:
    """Cheapest first: the engine's numbers on the reference's tokens, then its answers through the endpoint."""
    engine = ENGINES[inputs.candidate.engine]
    reference = ctx.store.files(inputs.reference.key)
    dump = work.folder / "candidate"
    dump.mkdir()
    ctx.job(
        engine.logits_job(str(ctx.path(inputs.artifact)), str(reference), inputs.candidate.engine_args),
        work,
        target=dump,
    )
    result = ctx.job(logits.compare_job(str(reference), str(dump)), work).result
    shutil.rmtree(dump)  # as large as the reference's; the comparison is what is kept
    with served(ctx, inputs.candidate, inputs.artifact, work, concurrency=1) as server:
        answers = generate(server.url, generations.PROMPTS[: inputs.num_prompts], emit=ctx.emit)
    return logits.score(result, answers, inputs.reference.generations)
