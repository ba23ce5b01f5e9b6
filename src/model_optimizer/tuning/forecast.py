"""What the simulation says about one subject: its scheduler's settings, and step times once they were measured."""

from __future__ import annotations

from collections.abc import Sequence

from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.records.tuning import LoadKind, LoadPoint, PointPrediction, Prediction, Settings, TrialRun
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.simulation.calibrate import refine
from model_optimizer.simulation.config import SIMULATED, scheduler_config
from model_optimizer.simulation.simulate import quick_result, run_load, shape_for
from model_optimizer.simulation.steps import fit
from model_optimizer.tuning.boundary import boundary, load_of, next_load, point, value_of

NUM_REQUESTS = 300
MOST_LOADS = 12


def predict_boundary(
    config: SchedulerConfig,
    steps: StepModel,
    traffic: TrafficProfile,
    slo: SLO,
    *,
    kind: LoadKind,
    share: float,
    precision: float,
    start: float = 1.0,
) -> Prediction:
    """The heaviest load that should keep the SLO, sought and judged as on a real server, some milliseconds a load."""
    points: list[LoadPoint] = []
    while (load := next_load(points, start=start, kind=kind, precision=precision)) and len(points) < MOST_LOADS:
        points.append(_simulated(config, steps, traffic, load, slo, share))
    found = boundary(points)
    kept = next((p.result for p in points if p.load == found.kept), None)
    if kept is None:
        return Prediction(load=None, goodput_per_s=0.0)
    at = load_of(found.crossing, kind) if found.crossing is not None else kept.load
    return Prediction(
        load=at,
        goodput_per_s=kept.goodput_per_s,
        ttft_p99_s=kept.ttft_s.p99 if kept.ttft_s else None,
        tpot_p99_s=kept.tpot_s.p99 if kept.tpot_s else None,
    )


def _simulated(
    config: SchedulerConfig, steps: StepModel, traffic: TrafficProfile, load: Load, slo: SLO, share: float
) -> LoadPoint:
    run = run_load(config, steps, traffic, load, shape_for(load, num_requests=NUM_REQUESTS), seed=traffic.seed)
    return point(quick_result(load, run, slo), run.counted, slo, share)


class Forecast:
    """Predicts boundaries for settings of one engine, model, machine, traffic and SLO; nothing before ``calibrate``."""

    def __init__(self, engine: str, max_model_len: int, gpu_memory_bytes: int = 0) -> None:
        self.steps: StepModel | None = None
        self._engine = engine
        self._max_model_len = max_model_len
        self._gpu_memory_bytes = gpu_memory_bytes
        self._kv_tokens: int | None = None
        self._known: dict[str, Prediction | None] = {}

    @property
    def parameters(self) -> tuple[str, ...]:
        """Those of the engine that the simulation understands."""
        return SIMULATED.get(self._engine, ())

    def slots(self, settings: Settings) -> int:
        """Sequences that the engine runs at once with these settings; 1 where nothing is known of it."""
        config = self._config(settings)
        return config.max_num_seqs if config is not None else 1

    def calibrate(self, run: TrialRun, settings: Settings, traffic: TrafficProfile) -> None:
        """Step times from a server that ran with ``settings``, refined on the loads that it was measured under.

        Nothing where the samples do not determine them.
        """
        self._kv_tokens = run.kv_tokens
        config = self._config(settings)
        if config is None:
            return
        try:
            steps = fit(run.samples, config)
        except ValueError:
            return
        points = run.boundary.points if run.boundary is not None else ()
        self.steps = refine(steps, config, traffic, [p.result for p in points])

    def predict(
        self, settings: Settings, traffic: TrafficProfile, slo: SLO, *, kind: LoadKind, share: float, precision: float
    ) -> Prediction | None:
        """The heaviest load that these settings should hold; ``None`` where nothing is known of the engine."""
        config = None if self.steps is None else self._config(settings)
        if config is None or self.steps is None:
            return None
        key = config.digest()
        if key not in self._known:
            start = max((value_of(p.load) for p in self._known.values() if p is not None and p.load), default=1.0)
            self._known[key] = predict_boundary(
                config, self.steps, traffic, slo, kind=kind, share=share, precision=precision, start=start
            )
        return self._known[key]

    def predict_points(
        self, settings: Settings, traffic: TrafficProfile, slo: SLO, loads: Sequence[Load], share: float
    ) -> tuple[PointPrediction, ...]:
        """The same for single loads, for comparison with what was measured."""
        config = None if self.steps is None else self._config(settings)
        if config is None or self.steps is None:
            return ()
        found = [_simulated(config, self.steps, traffic, load, slo, share) for load in loads]
        return tuple(
            PointPrediction(
                load=p.load,
                kept=p.kept,
                ttft_p99_s=p.result.ttft_s.p99 if p.result.ttft_s else None,
                tpot_p99_s=p.result.tpot_s.p99 if p.result.tpot_s else None,
            )
            for p in found
        )

    def _config(self, settings: Settings) -> SchedulerConfig | None:
        return scheduler_config(
            self._engine,
            settings,
            kv_tokens=self._kv_tokens,
            max_model_len=self._max_model_len,
            gpu_memory_bytes=self._gpu_memory_bytes,
        )
