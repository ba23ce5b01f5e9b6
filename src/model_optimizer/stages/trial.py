"""One trial of the tuning: start the server with these settings, find the load that it holds, stop it.

A trial that crashes, hangs or runs out of memory is a result with the diagnosis, remembered like any other. Errors of
the machine (a full disk, a broken environment) are none: they end the search, which goes on when they are mended.
"""

from __future__ import annotations

import gzip
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from model_optimizer.engines import ENGINES
from model_optimizer.errors import StageFailure
from model_optimizer.host.server import RunningServer
from model_optimizer.loadgen.drive import Target, run_loads
from model_optimizer.metrics.goodput import with_goodput
from model_optimizer.records.artifact import Artifact
from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.measurement import LoadResult, RequestTrace
from model_optimizer.records.simulation import StepSample
from model_optimizer.records.tuning import Boundary, LoadKind, LoadPoint, TrialRun
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.simulation.calibrate import calibration_plan, samples_from
from model_optimizer.simulation.config import scheduler_config, simulated_engine
from model_optimizer.simulation.steps import fit
from model_optimizer.stages.context import Context, Work
from model_optimizer.stages.failing import as_failure
from model_optimizer.stages.serving import served
from model_optimizer.store.journal import now
from model_optimizer.tuning.boundary import Leg, boundary, interval, next_load, point, value_of
from model_optimizer.tuning.forecast import predict_boundary

NAME = "trial"
VERSION = 1
OBSERVES = True
OUTPUT = TrialRun
TRACES = "traces.jsonl.gz"
MAX_LOADS = 8


class Input(Record):
    """The settings are in ``candidate.engine_args``. ``start``: the first load tried. ``loads``: these instead of a
    search. ``leg`` tells repeats of one trial apart. ``calibrate``: first measure step times, with up
    to so many users; 0 does not. ``held_out``: other shapes of traffic, at their own single load.
    """

    artifact: Artifact
    candidate: Candidate
    traffic: TrafficProfile
    slo: SLO
    kind: LoadKind = "rate"
    share: float = 0.99
    precision: float = 0.08
    start: float = 1.0
    most: float | None = None
    loads: tuple[Load, ...] = ()
    max_loads: int = MAX_LOADS
    calibrate: int = 0
    held_out: tuple[TrafficProfile, ...] = ()
    leg: int = 0


def tools(inputs: Input) -> tuple[str, ...]:
    """The candidate's engine."""
    return (ENGINES[inputs.candidate.engine].TOOL,)


def run(ctx: Context, inputs: Input, work: Work) -> TrialRun:
    """Serve, calibrate where asked, search the boundary. One measurement at a time on this machine."""
    began = time.monotonic()
    trial = _Trial(ctx, inputs, work)
    found: dict[str, object] = {}
    with ctx.store.lock("measuring"):
        try:
            with served(ctx, inputs.candidate, inputs.artifact, work, concurrency=_users(inputs)) as server:
                found = {"ready_s": server.ready_s, "engine_version": server.version}
                found |= trial.measure(server)
                server.check()
                found["server"] = server.stats()
        except StageFailure as failure:
            found["failure"] = as_failure(failure, inputs.candidate.engine)
    found |= {"boundary": trial.boundary(), "seconds": time.monotonic() - began, "measured_at": now()}
    if trial.traces:
        _write(work.folder / TRACES, trial.traces)
        found["traces_key"] = work.key
    return TrialRun.model_validate(found)


class _Trial:
    """The loads of one server, with all requests that were counted."""

    def __init__(self, ctx: Context, inputs: Input, work: Work) -> None:
        self._ctx = ctx
        self._inputs = inputs
        self._work = work
        self._start = inputs.start
        self._points: list[LoadPoint] = []
        self.traces: list[tuple[Load, tuple[RequestTrace, ...]]] = []

    def measure(self, server: RunningServer) -> dict[str, object]:
        inputs = self._inputs
        engine = ENGINES[inputs.candidate.engine]
        kv_tokens = engine.kv_tokens(_log_text(self._work.log), server.metrics_text())
        samples: tuple[StepSample, ...] = ()
        if inputs.calibrate:
            samples = self._calibrate(server)
            self._start = self._first_guess(samples, kv_tokens) or inputs.start
        for load in self._loads():
            self._one(server, load)
            server.check()
        held_out = {shape.id: self._shape(server, shape) for shape in inputs.held_out}
        return {"kv_tokens": kv_tokens, "samples": samples, "held_out": held_out}

    def boundary(self) -> Boundary | None:
        """Of the loads that were finished; ``None`` where none was."""
        if not self._points:
            return None
        found = boundary(self._points)
        inputs = self._inputs
        if found.crossing is None or not inputs.slo.latency_limits:
            return found
        leg = Leg(self.traces, inputs.slo, inputs.share)
        return found.model_copy(update={"crossing_ci95": interval([leg])})

    def _loads(self) -> Iterator[Load]:
        inputs = self._inputs
        if inputs.loads:
            yield from inputs.loads
            return
        while len(self._points) < inputs.max_loads:
            load = next_load(
                self._points,
                start=self._start,
                kind=inputs.kind,
                precision=inputs.precision,
                most=inputs.most or math.inf,
            )
            if load is None:
                return
            yield load

    def _one(self, server: RunningServer, load: Load) -> None:
        """Measure one load and judge it. Every trial of a leg meets the same prompts, each new to its server."""
        result, traces = self._drive(server, self._inputs.traffic, load)
        result = with_goodput(result, traces, self._inputs.slo)
        found = point(result, traces, self._inputs.slo, self._inputs.share)
        self._points.append(found)
        self.traces.append((load, traces))
        self._ctx.emit(
            "trial_load",
            load=str(load),
            kept=found.kept,
            margin=round(found.margin, 3),
            goodput_per_s=round(result.goodput_per_s, 3),
        )

    def _shape(self, server: RunningServer, shape: TrafficProfile) -> LoadResult:
        return self._drive(server, shape, shape.loads[0])[0]

    def _drive(
        self, server: RunningServer, traffic: TrafficProfile, load: Load
    ) -> tuple[LoadResult, tuple[RequestTrace, ...]]:
        alone = traffic.model_copy(update={"loads": (load,)})
        salt = f"{self._inputs.leg}/{traffic.id}/{load}"
        run = run_loads(Target(base_url=server.url), alone, SLO(), emit=self._ctx.emit, salt=salt)
        return run.results[0], run.traces[0]

    def _first_guess(self, samples: Sequence[StepSample], kv_tokens: int | None) -> float | None:
        """Where the boundary should be by these step times: a search from one request a second would take minutes."""
        inputs, gpus = self._inputs, self._ctx.host.gpus
        config = scheduler_config(
            simulated_engine(inputs.candidate.engine, has_gpu=bool(gpus)),
            inputs.candidate.engine_args,
            kv_tokens=kv_tokens,
            max_model_len=inputs.candidate.max_model_len,
            gpu_memory_bytes=gpus[0].memory_bytes if gpus else 0,
        )
        if config is None:
            return None
        try:
            steps = fit(samples, config)
        except ValueError:
            return None
        said = predict_boundary(
            config, steps, inputs.traffic, inputs.slo, kind=inputs.kind, share=inputs.share, precision=inputs.precision
        )
        return value_of(said.load) if said.load is not None else None

    def _calibrate(self, server: RunningServer) -> tuple[StepSample, ...]:
        """Step times from the designed loads. They are not part of the boundary."""
        candidate = self._inputs.candidate
        plan = calibration_plan(max_concurrency=self._inputs.calibrate, max_model_len=candidate.max_model_len)
        measured = []
        for traffic in plan:
            for load in traffic.loads:
                _, traces = self._drive(server, traffic, load)
                measured.append((load, traces))
        return samples_from(measured)


def read_traces(ctx: Context, run: TrialRun) -> list[tuple[Load, tuple[RequestTrace, ...]]]:
    """The counted requests of each load of the boundary's search, in the order in which the loads were measured."""
    if run.traces_key is None:
        return []
    found: dict[str, list[RequestTrace]] = {}
    with gzip.open(ctx.store.files(run.traces_key) / TRACES, "rb") as file:
        for line in file:
            entry = orjson.loads(line)
            found.setdefault(entry["load"], []).append(RequestTrace.model_validate(entry["trace"]))
    return [(Load.model_validate(text.removeprefix("c=")), tuple(traces)) for text, traces in found.items()]


def _write(path: Path, loads: Sequence[tuple[Load, Sequence[RequestTrace]]]) -> None:
    with gzip.open(path, "wb") as file:
        for load, traces in loads:
            for trace in traces:
                line = {"load": str(load), "trace": trace.model_dump(mode="json", exclude_defaults=True)}
                file.write(orjson.dumps(line) + b"\n")


def _users(inputs: Input) -> int:
    """Users at once that the engine is told to expect, where it must be told; settings come before it."""
    return max([load.concurrency or 1 for load in inputs.traffic.loads], default=1)


def _log_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
