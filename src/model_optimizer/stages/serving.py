"""How a stage serves a candidate: the same settings for its behaviour check and its load test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from model_optimizer.engines import ENGINES
from model_optimizer.host.server import RunningServer
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.tooling import Launch, Serve
from model_optimizer.stages.context import Context, Work


@contextlib.contextmanager
def served(
    ctx: Context, candidate: Candidate, artifact: Artifact, work: Work, *, concurrency: int
) -> Iterator[RunningServer]:
    """The candidate's engine serving its artifact on a free loopback port."""
    engine = ENGINES[candidate.engine]

    def launch_on(port: int) -> Launch:
        return engine.launch(
            Serve(
                model_path=str(ctx.path(artifact)),
                port=port,
                max_model_len=candidate.max_model_len,
                concurrency=concurrency,
                cpu_cores=ctx.host.cpu_cores,
                device=ctx.host.accelerator,
                engine_args=candidate.engine_args,
            )
        )

    with ctx.serve(launch_on, work) as server:
        yield server
