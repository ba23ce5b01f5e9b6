"""Load test: the candidate's server under each load of the traffic, one load after another."""

from __future__ import annotations

import gzip

import orjson

from model_optimizer.engines import ENGINES
from model_optimizer.loadgen.drive import Target, run_loads
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.measurement import Measurement, RequestTrace
from model_optimizer.records.workload import SLO, TrafficProfile
from model_optimizer.stages.context import Context, Work
from model_optimizer.stages.serving import served
from model_optimizer.store.journal import now

NAME = "loadtest"
VERSION = 1
OBSERVES = True
OUTPUT = Measurement
TRACES = "traces.jsonl.gz"


class Input(Record):
    """The SLO is not part of it: goodput is worked out from the stored traces, so a new SLO measures nothing again."""

    artifact: Artifact
    candidate: Candidate
    traffic: TrafficProfile


def tools(inputs: Input) -> tuple[str, ...]:
    """The candidate's engine."""
    return (ENGINES[inputs.candidate.engine].TOOL,)


def run(ctx: Context, inputs: Input, work: Work) -> Measurement:
    """Serve, warm up, measure. One measurement at a time on this machine: two would disturb each other."""
    concurrency = inputs.traffic.max_concurrency
    with (
        ctx.store.lock("measuring"),
        served(ctx, inputs.candidate, inputs.artifact, work, concurrency=concurrency) as (server),
    ):
        run = run_loads(Target(base_url=server.url), inputs.traffic, SLO(), emit=ctx.emit, salt="")
        server.check()
        stats = server.stats()
        version = server.version
    with gzip.open(work.folder / TRACES, "wb") as file:
        for result, traces in zip(run.results, run.traces, strict=True):
            for trace in traces:
                line = {"load": str(result.load), "trace": trace.model_dump(mode="json", exclude_defaults=True)}
                file.write(orjson.dumps(line) + b"\n")
    return Measurement(
        engine=inputs.candidate.engine,
        engine_version=version,
        host_identity=ctx.host.identity(),
        measured_at=now(),
        loads=run.results,
        server=stats,
        traces_key=work.key,
    )


def read_traces(ctx: Context, measurement: Measurement) -> dict[str, tuple[RequestTrace, ...]]:
    """The stored requests of each load (by its text form), in the order in which they were sent."""
    traces: dict[str, list[RequestTrace]] = {str(result.load): [] for result in measurement.loads}
    if measurement.traces_key is not None:
        with gzip.open(ctx.store.files(measurement.traces_key) / TRACES, "rb") as file:
            for line in file:
                entry = orjson.loads(line)
                traces[entry["load"]].append(RequestTrace.model_validate(entry["trace"]))
    return {load: tuple(found) for load, found in traces.items()}
