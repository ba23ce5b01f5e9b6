"""A candidate as something to tune: what the engine needs to start, what may be searched, good first guesses."""

from __future__ import annotations

from pathlib import Path

from model_optimizer.engines import ENGINES
from model_optimizer.kb.tuning import Place, invalid, parameters
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.run import RunSpec
from model_optimizer.records.tooling import Fit, Serve
from model_optimizer.records.tuning import Settings, Space, TuningSpec
from model_optimizer.simulation.config import simulated_engine
from model_optimizer.stages.context import Context
from model_optimizer.stages.installed import installed_facts
from model_optimizer.stages.intake import Opened
from model_optimizer.stages.tuner import Subject
from model_optimizer.tuning.forecast import Forecast

PORT = 8000


def subject_of(
    ctx: Context, spec: RunSpec, opened: Opened, candidate: Candidate, artifact: Artifact, tuning: TuningSpec
) -> Subject:
    """``candidate`` holds the plan's starting parameters: they become a seed, and the engine's own defaults trial 0.

    What makes the scheme (``quantization``) stays in every trial. Raises ``UnknownName`` for parameters that the engine
    does not have.
    """
    engine = ENGINES[candidate.engine]
    fit = Fit(
        model=opened.model,
        host=ctx.host,
        scheme=candidate.scheme,
        max_model_len=candidate.max_model_len,
        concurrency=spec.traffic.max_concurrency,
        weight_bytes=artifact.size_bytes,
    )
    planned = engine.engine_args(fit)
    needed = {**engine.default_args(fit), **{k: v for k, v in candidate.engine_args.items() if k not in planned}}
    place = _place(ctx, opened, candidate)
    name = simulated_engine(candidate.engine, has_gpu=bool(ctx.host.gpus))
    version = ctx.toolbox.ensure(engine.TOOL).version
    facts = installed_facts(ctx).get(name)
    space = _from_start(parameters(name, version, place, installed=facts, names=tuning.parameters), needed)
    searched = {p.name: p for p in space.parameters}
    start = {
        k: v
        for k, v in candidate.engine_args.items()
        if k in searched and v in searched[k].values and v != searched[k].default
    }

    def why_not(settings: Settings) -> str | None:
        return invalid(name, {**needed, **tuning.fixed, **settings}, place)

    def command(settings: Settings) -> str | None:
        return engine.command(
            Serve(
                model_path=_shown(ctx.path(artifact), opened.model.source),
                port=PORT,
                max_model_len=candidate.max_model_len,
                concurrency=spec.traffic.max_concurrency,
                cpu_cores=ctx.host.cpu_cores,
                device=ctx.host.accelerator,
                engine_args={**needed, **tuning.fixed, **settings},
            )
        )

    return Subject(
        artifact=artifact,
        candidate=candidate.model_copy(update={"engine_args": needed}),
        space=space,
        invalid=why_not,
        forecast=Forecast(name, candidate.max_model_len, place.gpu_memory_bytes),
        seeds=((start, "the plan's starting parameters"),) if start else (),
        command=command,
    )


def _from_start(space: Space, needed: Settings) -> Space:
    """What every trial is started with is this search's default of that parameter, whatever the engine's own is."""
    kept = [
        p.model_copy(update={"default": needed[p.name], "values": tuple(dict.fromkeys((*p.values, needed[p.name])))})
        if p.name in needed
        else p
        for p in space.parameters
    ]
    return space.model_copy(update={"parameters": tuple(kept)})


def _place(ctx: Context, opened: Opened, candidate: Candidate) -> Place:
    gpus = ctx.host.gpus
    return Place(
        platform="cuda" if gpus else "cpu",
        cores=ctx.host.cpu_cores,
        max_model_len=candidate.max_model_len,
        num_gpus=len(gpus),
        gpu_memory_bytes=gpus[0].memory_bytes if gpus else 0,
        capability=gpus[0].compute_capability if gpus else None,
        has_experts=opened.model.moe is not None,
        gpu_name=gpus[0].name if gpus else "",
    )


def _shown(path: Path, source: str) -> str:
    """The user's own words for a model that is used as it is."""
    return source if path.is_dir() and path == Path(source).expanduser().absolute() else str(path)
