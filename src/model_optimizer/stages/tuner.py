"""The trials of one candidate: the engine's default first, then seeds and proposals, each a remembered stage.

The search proposes the same settings after the same answers: the same line after an interruption goes through what was
measured in a moment and continues.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from model_optimizer.records.artifact import Artifact
from model_optimizer.records.candidate import Candidate
from model_optimizer.records.tuning import (
    Boundary,
    Prediction,
    Settings,
    Space,
    StressResult,
    Trial,
    TrialRole,
    TrialRun,
    Tuning,
    TuningSpec,
)
from model_optimizer.records.workload import SLO, TrafficProfile
from model_optimizer.stages import stress, trial
from model_optimizer.stages.context import Context
from model_optimizer.tuning.boundary import Leg, value_of
from model_optimizer.tuning.decide import agreement, foreseen, held, ranked
from model_optimizer.tuning.forecast import Forecast
from model_optimizer.tuning.search import Search

CALIBRATED_SHARE = 0.6
"""The first trial also calibrates, and knows less of where the boundary is."""

SIMULATED_SEEDS = 2
WORTHWHILE = 1.02
"""A seed must promise more than the default by this factor."""

HOPELESS = 0.8
"""Settings predicted to hold less than this share of the best are not tried."""

MAX_SKIPS = 25
LEG_LOADS = 4


class Subject(NamedTuple):
    """What is tuned: an artifact in an engine. ``candidate`` holds the least settings that the engine needs to start;
    ``seeds`` are settings known to be good elsewhere, with where from; ``forecast`` knows its scheduler.
    """

    artifact: Artifact
    candidate: Candidate
    space: Space
    invalid: Callable[[Settings], str | None]
    forecast: Forecast
    seeds: tuple[tuple[Settings, str], ...] = ()
    command: Callable[[Settings], str | None] | None = None


class Tuner:
    """The search for one subject. ``tuning`` is what is known so far; ``saved`` is told whenever it grows."""

    def __init__(
        self,
        ctx: Context,
        subject: Subject,
        traffic: TrafficProfile,
        slo: SLO,
        spec: TuningSpec,
        saved: Callable[[Tuning], None],
    ) -> None:
        self._ctx = ctx
        self._subject = subject
        self._traffic = traffic.model_copy(update={"seconds_per_load": spec.seconds_per_load})
        self._slo = slo
        self._spec = spec
        self._saved = saved
        self._search = Search(subject.space.parameters, invalid=subject.invalid)
        self._began = time.monotonic()
        self.tuning = Tuning(
            candidate=subject.candidate,
            engine_version=subject.space.version,
            traffic=traffic,
            slo=slo,
            spec=spec,
            space=subject.space,
        )

    @property
    def label(self) -> str:
        """The candidate's."""
        return self._subject.candidate.label

    @property
    def _unit(self) -> str:
        return "requests/s" if self._spec.kind == "rate" else "users"

    @property
    def trial_s(self) -> float:
        """What one more trial takes: the median of those that did not calibrate, else a part of the one that did."""
        times = [t.run.seconds for t in self.tuning.trials if t.run is not None and t.role != "default"]
        if times:
            return statistics.median(times)
        first = [t.run.seconds for t in self.tuning.trials if t.run is not None]
        return CALIBRATED_SHARE * sum(first) / len(first) if first else 0.0

    def default(self) -> Trial:
        """Trial 0: the engine as it comes, the thing to beat; its server also gives the step times."""
        done = self._try("default", {}, "the engine's own defaults", start=None, calibrate=True)
        if done.run is not None and done.run.samples:
            self._subject.forecast.calibrate(done.run, self._with({}).engine_args, self._traffic)
            self._update(steps=self._subject.forecast.steps)
            # its own prediction comes after its trial, which the step times were fitted on: it proves nothing
            told = done.model_copy(update={"predicted": self._predict({})})
            self._update(trials=(told, *self.tuning.trials[1:]))
        return done

    def search(self, deadline: float) -> None:
        """Seeds, then proposals, until ``deadline`` (``time.monotonic``), the number of trials, or nothing is left."""
        skipped = 0
        for role, settings, why in self._proposals():
            if len([t for t in self.tuning.trials if t.run is not None]) >= self._spec.budget.trials:
                self._update(ended=f"the budget of {self._spec.budget.trials} trials is used up")
                return
            if time.monotonic() + self.trial_s > deadline:
                self._update(ended="the time for trials is used up")
                return
            predicted = self._predict(settings)
            best = max((held(t.boundary) for t in self.tuning.trials), default=0.0)
            if role == "search" and predicted is not None and foreseen(predicted) < HOPELESS * best:
                skipped += 1
                self._skip(settings, predicted, best)
                if skipped >= MAX_SKIPS:
                    self._update(ended="the simulation sees nothing better in what the search proposes")
                    return
                continue
            self._try(role, settings, why, start=self._start(predicted), predicted=predicted)
        self._update(ended="every combination was tried or ruled out")

    def leg(
        self, settings: Settings, around: Boundary | None, number: int, shapes: Sequence[TrafficProfile]
    ) -> TrialRun:
        """One repeat for the confirmation, on prompts of its own, around the boundary that is known."""
        inputs = self._inputs(settings, start=held(around) or 1.0).model_copy(
            update={"leg": number, "max_loads": LEG_LOADS, "held_out": tuple(shapes)}
        )
        return self._ctx.run(trial, inputs, subject=f"{self.label} repeat {number}")

    def stress(self, settings: Settings, slots: int) -> StressResult:
        """The longest prompts in all slots, bursts, clients that hang up."""
        longest = max(self._traffic.lengths, key=lambda c: c.prompt_tokens)
        output = longest.output_tokens or self._traffic.output_tokens
        inputs = stress.Input(
            artifact=self._subject.artifact,
            candidate=self._with(settings),
            slots=slots,
            prompt_tokens=min(longest.prompt_tokens, self._subject.candidate.max_model_len - output - 8),
            output_tokens=output,
        )
        return self._ctx.run(stress, inputs, subject=self.label)

    def traces(self, run: TrialRun) -> Leg | None:
        """The run's requests for the bootstrap; ``None`` where there are none."""
        loads = trial.read_traces(self._ctx, run)
        return Leg(loads, self._slo, self._spec.share) if loads else None

    def conclude(self, **fields: object) -> None:
        """Choose the winner among what was measured, and say how well the simulation agreed."""
        best = next(iter(ranked(self.tuning.trials)), None)
        settings = {} if best is None else best.settings
        self._update(
            winner=best and best.number,
            agreement=agreement(self.tuning.trials),
            importance=self._search.importance(),
            command=self._subject.command(settings) if self._subject.command else None,
            seconds=time.monotonic() - self._began,
            **fields,
        )

    def conclude_with(self, winner: Trial, **fields: object) -> None:
        """The winner is this trial; ``fields`` of the tuning with it."""
        command = self._subject.command(winner.settings) if self._subject.command else None
        self._update(winner=winner.number, command=command, seconds=time.monotonic() - self._began, **fields)

    def _proposals(self) -> Iterator[tuple[TrialRole, Settings, str]]:
        """Seeds first: the simulation's best, then settings known to be good; then the estimator's."""
        tried: list[Settings] = [t.settings for t in self.tuning.trials]
        for settings, why in (*self._simulated(), *self._subject.seeds):
            if settings not in tried and self._subject.invalid(settings) is None:
                tried.append(settings)
                yield "seed", settings, why
        while (asked := self._search.ask()) is not None:
            yield "search", asked, "proposed by the search"

    def _simulated(self) -> Iterator[tuple[Settings, str]]:
        """The best few of all combinations of the parameters that the simulation knows."""
        forecast = self._subject.forecast
        if forecast.steps is None:
            return
        default = self._predict({})
        usual = foreseen(default) if default is not None else 0.0
        found = []
        for settings in self._search.all_valid(forecast.parameters):
            predicted = self._predict(settings)
            if predicted is not None and foreseen(predicted) > WORTHWHILE * usual:
                found.append((foreseen(predicted), len(settings), settings))
        found.sort(key=lambda item: (-item[0], item[1]))
        for load, _, settings in found[:SIMULATED_SEEDS]:
            yield settings, f"best in the simulation: {load:.3g} {self._unit}, the default {usual:.3g}"

    def _try(
        self,
        role: TrialRole,
        settings: Settings,
        why: str,
        *,
        start: float | None,
        calibrate: bool = False,
        predicted: Prediction | None = None,
    ) -> Trial:
        number = len(self.tuning.trials)
        self._ctx.emit("trial_started", number=number, role=role, settings=settings, candidate=self.label, why=why)
        slots = self._subject.forecast.slots(self._with(settings).engine_args) if calibrate else 0
        inputs = self._inputs(settings, start=start or 1.0).model_copy(update={"calibrate": slots})
        run = self._ctx.run(trial, inputs, subject=f"{self.label} trial {number}")
        outcome = "measured" if run.failure is None else "failed"
        done = Trial(
            number=number, role=role, settings=settings, outcome=outcome, why=why, predicted=predicted, run=run
        )
        self._record(self._with_points(done))
        if run.failure is not None:
            self._search.tell_failed(settings)
        else:
            self._search.tell(settings, held(run.boundary))
        return done

    def _with_points(self, done: Trial) -> Trial:
        """With what the simulation says of the loads that were measured."""
        if done.boundary is None or done.role == "default":
            return done
        loads = [p.load for p in done.boundary.points]
        said = self._subject.forecast.predict_points(
            self._with(done.settings).engine_args, self._traffic, self._slo, loads, self._spec.share
        )
        return done.model_copy(update={"predicted_points": said})

    def _skip(self, settings: Settings, predicted: Prediction, best: float) -> None:
        why = f"predicted to hold {foreseen(predicted):.3g} {self._unit}; the best measured holds {best:.3g}"
        self._record(
            Trial(
                number=len(self.tuning.trials),
                role="search",
                settings=settings,
                outcome="skipped",
                why=why,
                predicted=predicted,
            )
        )
        self._search.tell_predicted(settings, foreseen(predicted))

    def _record(self, done: Trial) -> None:
        self._update(trials=(*self.tuning.trials, done))
        best = next(iter(ranked(self.tuning.trials)), None)
        self._ctx.emit(
            "trial_finished",
            number=done.number,
            outcome=done.outcome,
            holds=held(done.boundary),
            best=best.number if best else None,
            best_holds=held(best.boundary) if best else 0.0,
        )

    def _predict(self, settings: Settings) -> Prediction | None:
        spec = self._spec
        return self._subject.forecast.predict(
            self._with(settings).engine_args,
            self._traffic,
            self._slo,
            kind=spec.kind,
            share=spec.share,
            precision=spec.precision,
        )

    def _start(self, predicted: Prediction | None) -> float:
        """Where the search for the boundary begins: at the prediction, else at the best that is known."""
        if predicted is not None and predicted.load is not None:
            return value_of(predicted.load)
        return max((held(t.boundary) for t in self.tuning.trials), default=0.0) or 1.0

    def _inputs(self, settings: Settings, *, start: float) -> trial.Input:
        spec = self._spec
        return trial.Input(
            artifact=self._subject.artifact,
            candidate=self._with(settings),
            traffic=self._traffic,
            slo=self._slo,
            kind=spec.kind,
            share=spec.share,
            precision=spec.precision,
            start=float(f"{start:.3g}"),
        )

    def _with(self, settings: Settings) -> Candidate:
        candidate = self._subject.candidate
        args = {**candidate.engine_args, **self._spec.fixed, **settings}
        return candidate.model_copy(update={"engine_args": args})

    def _update(self, **fields: object) -> None:
        self.tuning = self.tuning.model_copy(update=fields)
        self._saved(self.tuning)
