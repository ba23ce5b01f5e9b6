"""Reference: what the unoptimised model itself says, stored for every later comparison."""

from __future__ import annotations

from model_optimizer.engines import ENGINES
from model_optimizer.evaluators import generations, logits
from model_optimizer.loadgen.generate import generate
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.run import Reference
from model_optimizer.records.workload import AccuracyLimits
from model_optimizer.stages.context import Context, Work
from model_optimizer.stages.serving import served

NAME = "reference"
VERSION = 1
OBSERVES = False
OUTPUT = Reference


class Input(Record):
    """``candidate`` is the baseline: the model as it came, in the reference engine."""

    artifact: Artifact
    candidate: Candidate
    eval_tokens: int
    num_prompts: int
    text_digest: str


def inputs(artifact: Artifact, candidate: Candidate, limits: AccuracyLimits) -> Input:
    """The input, with the digest of the evaluation text and prompts in it."""
    return Input(
        artifact=artifact,
        candidate=candidate,
        eval_tokens=limits.eval_tokens,
        num_prompts=limits.num_prompts,
        text_digest=logits.text_digest(),
    )


def tools(inputs: Input) -> tuple[str, ...]:
    """The reference engine."""
    return (ENGINES[inputs.candidate.engine].TOOL,)


def run(ctx: Context, inputs: Input, work: Work) -> Reference:
    """Log-likelihoods and logits of the evaluation text, then greedy answers through the served endpoint."""
    job = logits.reference_job(
        str(ctx.path(inputs.artifact)),
        eval_tokens=inputs.eval_tokens,
        engine_args=inputs.candidate.engine_args,
    )
    result = ctx.job(job, work).result
    with served(ctx, inputs.candidate, inputs.artifact, work, concurrency=1) as server:
        answers = generate(server.url, generations.PROMPTS[: inputs.num_prompts], emit=ctx.emit)
    return Reference(
        key=work.key,
        perplexity=float(result["perplexity"]),
        num_tokens=int(result["num_tokens"]),
        dtype=str(result["dtype"]),
        generations=tuple(answers),
    )
