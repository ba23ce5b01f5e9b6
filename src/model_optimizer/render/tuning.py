"""A search for settings as the report shows it: every trial with its reason, every load, what was proven."""

from __future__ import annotations

from dataclasses import dataclass

from model_optimizer.records.tuning import Confirmation, Settings, Trial, Tuning
from model_optimizer.records.workload import Load
from model_optimizer.render import words
from model_optimizer.render.chart import limit_words

VERDICTS = {
    "better": "better than the default, beyond the noise",
    "worse": "worse than the default",
    "no difference": "no difference that the noise allows to see",
    "not enough evidence": "not enough evidence to tell",
}


@dataclass(frozen=True)
class TrialRow:
    """One trial: what it held against what was predicted; ``share`` of the best, for the bar."""

    number: int
    is_winner: bool
    role: str
    settings: str
    holds: str
    predicted: str
    share: float
    why: str
    tone: str


@dataclass(frozen=True)
class LoadRow:
    """One load of one trial."""

    trial: int
    load: str
    verdict: str
    n: str
    ttft: str
    tpot: str
    good: str
    predicted: str


@dataclass(frozen=True)
class TuningStory:
    """One candidate's search."""

    name: str
    promise: str
    sentence: str
    proofs: tuple[str, ...]
    trials: tuple[TrialRow, ...]
    loads: tuple[LoadRow, ...]
    held_out: tuple[tuple[str, str, str, str], ...]
    stress: tuple[tuple[str, str], ...]
    agreement: str
    importance: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...]
    command: str


def tuning_story(tuning: Tuning) -> TuningStory:
    """Everything about this search in words; nothing is computed here that the record does not hold."""
    best = max((_held(t) for t in tuning.trials), default=0.0) or 1.0
    return TuningStory(
        name=f"{tuning.candidate.label} {tuning.engine_version}",
        promise=", ".join(f"{limit.metric.upper()} {limit_words(limit)}" for limit in tuning.slo.limits),
        sentence=_sentence(tuning),
        proofs=tuple(_proof(tuning)),
        trials=tuple(_trial(t, tuning, best) for t in tuning.trials),
        loads=tuple(row for t in tuning.trials for row in _loads(t)),
        held_out=_held_out(tuning.confirmation),
        stress=tuple(tuning.stress.phases.items()) if tuning.stress is not None else (),
        agreement=_agreement(tuning),
        importance=tuple((name, f"{share:.0%}") for name, share in tuning.importance.items()),
        left_out=tuple(tuning.space.left_out.items()),
        command=tuning.command or "",
    )


def _sentence(tuning: Tuning) -> str:
    best, default = tuning.best, tuning.default
    if best is None:
        return f"No settings that were tried kept the SLO at any load. {tuning.ended}"
    found = f"Trial {best.number} holds {_amount(_held(best), tuning)} within the SLO"
    if default is not None and best.number != default.number:
        found += f"; the engine's default holds {_amount(_held(default), tuning)}"
    ended = tuning.ended[:1].upper() + tuning.ended[1:]
    return f"{found}. {ended}{'.' if ended else ''}".strip()


def _proof(tuning: Tuning) -> list[str]:
    found = []
    pairs = (
        (tuning.confirmation, tuning.reference or "the default"),
        (tuning.over_own_default, tuning.candidate.label),
    )
    for proof, against in pairs:
        if proof is None:
            continue
        ratio = ""
        if proof.ratio is not None:
            ratio = f"{proof.ratio:.2f} times the load of the default of {against}"
            if proof.ratio_ci95 is not None:
                ratio += f" (95 % interval {proof.ratio_ci95[0]:.2f} to {proof.ratio_ci95[1]:.2f})"
            ratio += ": "
        found.append(
            f"Repeats in the order {proof.order} (A, C: default, B: winner): {ratio}{VERDICTS[proof.verdict]}."
        )
    if tuning.stress is not None:
        told = "survived" if tuning.stress.passed else "did not survive"
        counted = f"{tuning.stress.num_errors} errors in {tuning.stress.num_requests} requests"
        found.append(f"The winner {told} the stress test: {counted}.")
    return found


def _trial(trial: Trial, tuning: Tuning, best: float) -> TrialRow:
    holds, tone = _amount(_held(trial), tuning), "plain"
    why = trial.why
    if trial.outcome == "failed" and trial.run is not None and trial.run.failure is not None:
        failure = trial.run.failure
        holds, tone = "failed", "bad"
        why = f"{failure.what}: {failure.finding.title if failure.finding else failure.cause}"
    elif trial.outcome == "skipped":
        holds, tone = "not started", "dim"
    elif not _held(trial):
        holds, tone = "misses the SLO", "bad"
    elif trial.boundary is not None and trial.boundary.broken is None:
        holds = f"at least {holds}"
    said = trial.predicted
    predicted = _amount(_value(said.load), tuning) if said is not None and said.load is not None else words.NOTHING
    return TrialRow(
        number=trial.number,
        is_winner=trial.number == tuning.winner,
        role=trial.role,
        settings=_settings(trial.settings),
        holds=holds,
        predicted=predicted,
        share=min(1.0, _held(trial) / best),
        why=why,
        tone=tone,
    )


def _loads(trial: Trial) -> list[LoadRow]:
    said = {str(p.load): p for p in trial.predicted_points}
    rows = []
    for point in trial.boundary.points if trial.boundary is not None else ():
        result, guess = point.result, said.get(str(point.load))
        rows.append(
            LoadRow(
                trial=trial.number,
                load=words.load(point.load),
                verdict="keeps" if point.kept else "breaks",
                n=f"{result.num_requests:,}",
                ttft=words.seconds(result.ttft_s.p99) if result.ttft_s else words.NOTHING,
                tpot=words.seconds(result.tpot_s.p99) if result.tpot_s else words.NOTHING,
                good=f"{result.good_share:.1%}",
                predicted=words.seconds(guess.ttft_p99_s) if guess is not None and guess.ttft_p99_s else words.NOTHING,
            )
        )
    return rows


def _held_out(found: Confirmation | None) -> tuple[tuple[str, str, str, str], ...]:
    if found is None:
        return ()
    return tuple(
        (shape, name.replace("_", " "), words.seconds(a), words.seconds(b))
        for shape, pairs in found.held_out.items()
        for name, (a, b) in pairs.items()
    )


def _agreement(tuning: Tuning) -> str:
    found = tuning.agreement
    if found is None or found.goodput_error_p50 is None:
        return ""
    late = "" if found.ttft_p99_error_p50 is None else f", of P99 TTFT {found.ttft_p99_error_p50:.0%}"
    rank = "" if found.rank is None else f", rank correlation {found.rank:.2f}"
    return (
        f"The simulation's median error of the load held is {found.goodput_error_p50:.0%}{late}{rank}, over "
        f"{found.num_trials} trials; {found.false_passes} of {found.num_passes} loads that it let pass did not."
    )


def _held(trial: Trial) -> float:
    found = trial.boundary
    if found is None or found.kept is None:
        return 0.0
    return found.crossing if found.crossing is not None else _value(found.kept)


def _value(load: Load) -> float:
    return float(load.concurrency or load.rate_per_s or 0.0)


def _amount(value: float, tuning: Tuning) -> str:
    return f"{value:.3g} {'requests/s' if tuning.spec.kind == 'rate' else 'users'}"


def _settings(settings: Settings) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "the engine's defaults"
