"""Which settings to try next: Optuna's tree-structured Parzen estimator, asked and told one trial at a time.

Settings that failed are told as violated constraints, so that the estimator learns where the engine crashes or runs out
of memory. Those that only the simulation judged are told as pruned at the predicted value: they rank behind measured
ones. Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011), with multivariate densities.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState

from model_optimizer.records.tuning import Parameter, Scalar, Settings

STARTUP_TRIALS = 4
MAX_DRAWS = 30
"""Proposals of the estimator before it is taken at its word that it wants what was tried already."""

MAX_LUCK = 2000
"""Random settings drawn then in search of some that are new, before the space counts as exhausted."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Search:
    """Asks for settings and is told their goodput. Equal answers to equal questions: a resumed search repeats itself.

    ``invalid`` says why settings cannot be (``None``: they can); such are never proposed.
    """

    def __init__(
        self, parameters: Sequence[Parameter], *, invalid: Callable[[Settings], str | None], seed: int = 0
    ) -> None:
        self._parameters = tuple(parameters)
        self._invalid = invalid
        self._rng = random.Random(f"search/{seed}")  # noqa: S311 (settings, not secrets)
        self._known: set[tuple[tuple[str, Scalar], ...]] = set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self) -> Settings | None:
        """New settings that are valid and were not told before; ``None`` where none are left to find.

        The estimator knows no "tried already": once it repeats itself, chance takes over, which also explores.
        """
        for _ in range(MAX_DRAWS):
            trial = self._study.ask()
            settings = self._settings({p.name: _suggest(trial, p) for p in self._parameters})
            self._study.tell(trial, state=TrialState.FAIL)  # what is told later comes with a trial of its own
            if self._is_new(settings):
                return settings
        for _ in range(MAX_LUCK):
            settings = self._settings({p.name: self._rng.choice(p.values) for p in self._parameters})
            if self._is_new(settings):
                return settings
        return None

    def tell(self, settings: Settings, goodput_per_s: float) -> None:
        """These settings were measured."""
        self._add(settings, value=goodput_per_s)

    def tell_failed(self, settings: Settings) -> None:
        """The engine did not survive these settings."""
        self._add(settings, value=0.0, violated=True)

    def tell_predicted(self, settings: Settings, goodput_per_s: float) -> None:
        """These settings were only simulated."""
        self._add(settings, value=goodput_per_s, pruned=True)

    def all_valid(self, names: Sequence[str]) -> Iterator[Settings]:
        """Every valid combination of these parameters' values, the others left to the engine."""
        chosen = [p for p in self._parameters if p.name in names]
        for values in product(*(p.values for p in chosen)):
            settings = self._settings({p.name: value for p, value in zip(chosen, values, strict=True)})
            if self._invalid(settings) is None:
                yield settings

    def importance(self) -> dict[str, float]:
        """Share of the goodput's variation that each parameter explains (PED-ANOVA); empty with too few trials."""
        done = [t for t in self._study.trials if t.state == TrialState.COMPLETE]
        if len(done) < 2 * STARTUP_TRIALS or len({t.value for t in done}) < 3:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = optuna.importance.get_param_importances(self._study)
            except (ValueError, RuntimeError):  # parameters without variation among the trials
                return {}
        return {name: float(value) for name, value in found.items()}

    def _settings(self, values: dict[str, Scalar]) -> Settings:
        """Without parameters whose needs are not met, and without those left at the engine's default."""
        by_name = {p.name: p for p in self._parameters}
        kept = {}
        for name, value in values.items():
            needs = by_name[name].needs
            has = {n: values.get(n, by_name[n].default if n in by_name else None) for n in needs}
            if all(has[n] == wanted for n, wanted in needs.items()) and value != by_name[name].default:
                kept[name] = value
        return kept

    def _is_new(self, settings: Settings) -> bool:
        return _key(settings) not in self._known and self._invalid(settings) is None

    def _add(self, settings: Settings, *, value: float, violated: bool = False, pruned: bool = False) -> None:
        self._known.add(_key(settings))
        params, spaces = {}, {}
        for parameter in self._parameters:
            chosen = settings.get(parameter.name, parameter.default)
            if chosen not in parameter.values:
                continue  # the engine's own choice lies outside of what is searched
            at = parameter.values.index(chosen)
            params[parameter.name] = at
            spaces[parameter.name] = _distribution(parameter)
        state = TrialState.PRUNED if pruned else TrialState.COMPLETE
        trial = optuna.trial.create_trial(
            state=state,
            value=None if pruned else value,
            params=params,
            distributions=spaces,
            intermediate_values={0: value} if pruned else {},
            constraints={"the engine survives": 1.0 if violated else 0.0},
        )
        self._study.add_trial(trial)


def _distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    if parameter.is_ordered:
        return optuna.distributions.IntDistribution(0, len(parameter.values) - 1)
    return optuna.distributions.CategoricalDistribution(range(len(parameter.values)))


def _suggest(trial: optuna.Trial, parameter: Parameter) -> Scalar:
    if parameter.is_ordered:
        return parameter.values[trial.suggest_int(parameter.name, 0, len(parameter.values) - 1)]
    return parameter.values[trial.suggest_categorical(parameter.name, range(len(parameter.values)))]


def _key(settings: Settings) -> tuple[tuple[str, Scalar], ...]:
    return tuple(sorted(settings.items()))
