"""Build: one transform applied to one artifact."""

from __future__ import annotations

import shutil

from model_optimizer.errors import DiskFull
from model_optimizer.host.fingerprint import fingerprint
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.model import ModelSpec
from model_optimizer.stages.context import Context, Work
from model_optimizer.transforms import TRANSFORMS
from model_optimizer.units import format_bytes

NAME = "build"
VERSION = 1
OBSERVES = False
OUTPUT = Artifact


class Input(Record):
    """``model`` is the checkpoint the source was made from (``ModelSpec.anonymous``); sizes are predicted from it."""

    source: Artifact
    step: TransformStep
    model: ModelSpec
    transform_version: int


def inputs(source: Artifact, step: TransformStep, model: ModelSpec) -> Input:
    """The input of this step, with the transform's own version in it."""
    version = TRANSFORMS[step.transform].VERSION
    return Input(source=source, step=step, model=model.anonymous(), transform_version=version)


def tools(inputs: Input) -> tuple[str, ...]:
    """The transform's environment."""
    return (TRANSFORMS[inputs.step.transform].TOOL,)


def run(ctx: Context, inputs: Input, work: Work) -> Artifact:
    """Run the transform's job into the stage's folder. Raises ``DiskFull`` before it starts, not half-way."""
    transform = TRANSFORMS[inputs.step.transform]
    needed = transform.output_bytes(inputs.step, inputs.model)
    free = shutil.disk_usage(work.folder).free
    if needed > free:
        raise DiskFull(
            f"{transform.NAME} needs {format_bytes(needed)} of disk, {format_bytes(free)} are free",
            cause=f"its output is written below {work.folder.parent.parent}",
            fix="free space there, or point MODEL_OPTIMIZER_HOME at a larger disk; what is finished is kept",
        )
    job = transform.job(inputs.step, str(ctx.path(inputs.source)), str(work.folder))
    ctx.job(job, work)
    main = transform.output_main(inputs.step)
    return Artifact(
        format=transform.PRODUCES,
        content_digest=fingerprint(work.folder, ctx.store.home / "fingerprints.json"),
        size_bytes=sum(p.stat().st_size for p in work.folder.rglob("*") if p.is_file()),
        key=work.key,
        main=main,
        made_by=transform.NAME,
    )
