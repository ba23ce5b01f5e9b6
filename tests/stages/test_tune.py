"""The search for settings with a SIMULATED engine behind it: its true step times are hidden from the search."""

from __future__ import annotations

from typing import Any

import pytest

from model_optimizer.records.artifact import Artifact
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.measurement import RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.records.tuning import (
    LoadPoint,
    Parameter,
    Settings,
    Space,
    StressResult,
    TrialRun,
    Tuning,
    TuningBudget,
    TuningSpec,
)
from model_optimizer.records.verdict import Failure
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.simulation.simulate import run_load, shape_for
from model_optimizer.stages import trial
from model_optimizer.stages.tune import tune
from model_optimizer.stages.tuner import Subject
from model_optimizer.tuning import boundary as b
from model_optimizer.tuning.decide import held
from model_optimizer.tuning.forecast import Forecast

TRAFFIC = TrafficProfile.model_validate({"prompt_tokens": {64: 0.8, 512: 0.2}, "output_tokens": 32, "loads": [4]})
LIMITS = SLO.model_validate({"ttft_p95": "400 ms", "tpot_p95": "25 ms"})
TRUE = StepModel(fixed_s=0.004, per_prefill_token_s=40e-6, per_decode_seq_s=0.3e-3, overhead_s=0.004)
SPACE = Space(
    engine="vllm",
    version="0.24.0",
    parameters=(
        Parameter(name="max_num_seqs", values=(4, 8, 16, 32, 64, 256), default=4),
        Parameter(name="max_num_batched_tokens", values=(256, 512, 2048, 8192), default=8192),
    ),
)
FAILURE = Failure(error="ServerFailed", what="vllm ended", cause="out of memory", fix="less")


class SimulatedContext:
    """Answers trials as a server with the true step times would; remembers them, as the store does."""

    def __init__(self, *, stop_after: int | None = None, fragile: str | None = None) -> None:
        self.asked: list[tuple[Settings, int]] = []
        self.known: dict[str, Any] = {}
        self.traces: dict[str, list[tuple[Load, tuple[RequestTrace, ...]]]] = {}
        self.stressed: list[Settings] = []
        self._stop_after = stop_after
        self._fragile = fragile

    def emit(self, kind: str, **fields: object) -> None:
        """Nobody watches."""

    def run(self, stage: Any, inputs: Any, *, subject: str) -> Any:
        key = stage.NAME + inputs.digest()
        if key not in self.known:
            if self._stop_after is not None and len(self.asked) >= self._stop_after:
                raise KeyboardInterrupt
            self.known[key] = self._trial(inputs) if stage.NAME == "trial" else self._stress(inputs)
        return self.known[key]

    def _trial(self, inputs: trial.Input) -> TrialRun:
        args = inputs.candidate.engine_args
        self.asked.append((dict(args), inputs.leg))
        if int(args.get("max_num_seqs", 4)) >= 256:
            return TrialRun(failure=FAILURE, seconds=1.0)
        config = SchedulerConfig(
            max_num_seqs=int(args.get("max_num_seqs", 4)),
            max_num_batched_tokens=int(args.get("max_num_batched_tokens", 8192)),
            num_kv_tokens=200_000,
            max_model_len=2048,
        )
        points: list[LoadPoint] = []
        traces: list[tuple[Load, tuple[RequestTrace, ...]]] = []
        for _ in range(inputs.max_loads):
            load = b.next_load(points, start=inputs.start, kind=inputs.kind, precision=inputs.precision)
            if load is None:
                break
            point, counted = self._load(config, load, inputs)
            points.append(point)
            traces.append((load, counted))
        key = inputs.digest()
        self.traces[key] = traces
        return TrialRun(boundary=b.boundary(points), seconds=1.0, traces_key=key)

    def _load(self, config: SchedulerConfig, load: Load, inputs: trial.Input) -> tuple[LoadPoint, Any]:
        from model_optimizer.metrics.loads import summarize
        from model_optimizer.simulation.simulate import CLIENT

        run = run_load(config, TRUE, TRAFFIC, load, shape_for(load, num_requests=150), seed=inputs.leg)
        result = summarize(load, run.window, run.counted, run.everything, slo=LIMITS, client=CLIENT)
        return b.point(result, run.counted, LIMITS, inputs.share), run.counted

    def _stress(self, inputs: Any) -> StressResult:
        settings = dict(inputs.candidate.engine_args)
        self.stressed.append(settings)
        passed = self._fragile is None or self._fragile not in str(sorted(settings.items()))
        return StressResult(passed=passed, phases={}, num_requests=1, num_errors=int(not passed))


@pytest.fixture(autouse=True)
def _traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "read_traces", lambda ctx, run: ctx.traces.get(run.traces_key or "", []))


def subject(name: str = "bf16") -> Subject:
    return Subject(
        artifact=Artifact(format="hf", content_digest="0" * 64, size_bytes=1),
        candidate=Candidate(scheme=name, engine="vllm", max_model_len=2048),
        space=SPACE,
        invalid=lambda s: "too few tokens" if int(s.get("max_num_batched_tokens", 8192)) < 300 else None,
        forecast=Forecast("vllm", 2048),
        command=lambda s: f"vllm serve {sorted(s.items())}",
    )


def search(ctx: SimulatedContext, **options: Any) -> tuple[list[Tuning], list[tuple[Tuning, ...]]]:
    saved: list[tuple[Tuning, ...]] = []
    spec = TuningSpec(budget=TuningBudget(wall=options.pop("wall", 600.0), trials=options.pop("trials", 8)), **options)
    subjects = [subject()]
    return list(tune(ctx, subjects, TRAFFIC, LIMITS, spec, saved.append)), saved  # type: ignore[arg-type]


def test_the_default_is_trial_0_and_the_winner_beats_it_beyond_the_noise() -> None:
    ctx = SimulatedContext()
    (tuning,), _ = search(ctx, order="ABBA")
    assert tuning.trials[0].role == "default" and tuning.trials[0].settings == {}
    assert tuning.best is not None and tuning.best.number > 0
    assert held(tuning.best.boundary) > 1.5 * held(tuning.trials[0].boundary)
    assert tuning.confirmation is not None and tuning.confirmation.order == "ABBA"
    assert tuning.confirmation.verdict == "better"
    ratio, ci95 = tuning.confirmation.ratio, tuning.confirmation.ratio_ci95
    assert ratio is not None and ci95 is not None and ci95[0] < ratio < ci95[1] and ratio > 1.5
    assert [leg for _, leg in ctx.asked if leg] == [1, 2, 3, 4]
    assert tuning.command is not None and str(tuning.best.settings["max_num_seqs"]) in tuning.command


def test_settings_that_crash_are_a_trial_and_the_search_goes_on() -> None:
    (tuning,), _ = search(SimulatedContext(), trials=12, order="AB")
    failed = [t for t in tuning.trials if t.outcome == "failed"]
    assert failed and failed[0].run is not None and failed[0].run.failure == FAILURE
    assert all(int(t.settings["max_num_seqs"]) == 256 for t in failed)
    assert any(t.number > failed[0].number and t.outcome == "measured" for t in tuning.trials)
    assert tuning.winner not in {t.number for t in failed}


def test_invalid_settings_are_never_started() -> None:
    ctx = SimulatedContext()
    search(ctx, trials=12, order="AB")
    assert all(int(settings.get("max_num_batched_tokens", 8192)) >= 300 for settings, _ in ctx.asked)


def test_the_number_of_trials_is_kept_and_no_time_means_the_default_alone() -> None:
    (tuning,), _ = search(SimulatedContext(), trials=3, order="AB")
    assert len(tuning.trials) == 3 and "3 trials" in tuning.ended
    (hurried,), _ = search(SimulatedContext(), wall=0.0, order="AB")
    assert len(hurried.trials) == 1 and "time" in hurried.ended
    assert hurried.winner == 0


def test_an_interruption_leaves_the_best_so_far_and_goes_on_to_the_caller() -> None:
    saved: list[tuple[Tuning, ...]] = []
    spec = TuningSpec(budget=TuningBudget(wall=600.0, trials=8), order="AB")
    ctx = SimulatedContext(stop_after=4)
    with pytest.raises(KeyboardInterrupt):
        tune(ctx, [subject()], TRAFFIC, LIMITS, spec, saved.append)  # type: ignore[arg-type]
    (last,) = saved[-1]
    assert len(last.trials) == 4 and last.winner is not None and "interrupted" in last.ended


def test_the_same_line_again_asks_the_same_and_goes_on() -> None:
    ctx = SimulatedContext(stop_after=4)
    spec = TuningSpec(budget=TuningBudget(wall=600.0, trials=6), order="AB")
    with pytest.raises(KeyboardInterrupt):
        tune(ctx, [subject()], TRAFFIC, LIMITS, spec, lambda _: None)  # type: ignore[arg-type]
    before = list(ctx.asked)
    ctx._stop_after = None
    (tuning,) = tune(ctx, [subject()], TRAFFIC, LIMITS, spec, lambda _: None)  # type: ignore[arg-type]
    assert ctx.asked[: len(before)] == before
    (fresh,) = tune(SimulatedContext(), [subject()], TRAFFIC, LIMITS, spec, lambda _: None)  # type: ignore[arg-type]
    assert [t.settings for t in tuning.trials] == [t.settings for t in fresh.trials]


def test_a_winner_that_does_not_survive_is_replaced() -> None:
    (first,), _ = search(SimulatedContext(), order="AB")
    assert first.best is not None
    fragile = f"('max_num_seqs', {first.best.settings['max_num_seqs']})"
    ctx = SimulatedContext(fragile=fragile)
    (tuning,), _ = search(ctx, order="AB")
    assert tuning.stress is not None and tuning.stress.passed
    assert tuning.best is not None and fragile not in str(sorted(tuning.best.settings.items()))
    assert len(ctx.stressed) >= 2


def test_a_rival_is_confirmed_against_the_first_ones_default_and_its_own() -> None:
    spec = TuningSpec(budget=TuningBudget(wall=600.0, trials=6), order="ACBBCA")
    plain, rival = subject(), subject("fp8")
    faster = SPACE.model_copy(update={"parameters": (SPACE.parameters[0].model_copy(update={"default": 4}),)})
    rival = rival._replace(
        candidate=rival.candidate.model_copy(update={"engine_args": {"max_num_seqs": 16}}), space=faster
    )
    ctx = SimulatedContext()
    first, second = tune(ctx, [plain, rival], TRAFFIC, LIMITS, spec, lambda _: None)  # type: ignore[arg-type]
    assert len(first.trials) == 1  # only its default: the search went to the one that holds more
    assert second.reference == first.candidate.label
    assert second.confirmation is not None and second.confirmation.order == "ABBA"
    assert second.confirmation.verdict == "better"
    assert second.winner == 0 or second.over_own_default is not None
