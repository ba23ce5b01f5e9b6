"""``model-optimize tune``: the settings that hold the most load within the SLO, and the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model_optimizer import api
from model_optimizer.cli.commands import EXIT_NOTHING_MEETS, request
from model_optimizer.cli.progress import ProgressView
from model_optimizer.cli.tools import may_install
from model_optimizer.errors import SpecInvalid
from model_optimizer.records.run import RunManifest
from model_optimizer.records.tuning import Confirmation, Scalar, Settings, Trial, Tuning
from model_optimizer.tuning.decide import foreseen, held
from model_optimizer.units import format_seconds, format_share

VERDICTS = {
    "better": "[green]better than the default[/]",
    "worse": "[red]worse than the default[/]",
    "no difference": "[yellow]no difference that the noise allows to see[/]",
    "not enough evidence": "[yellow]not enough evidence[/]",
}


def tune_command(
    model: str | None,
    flags: Mapping[str, Any],
    *,
    demo: bool,
    tuning: Mapping[str, Any],
    fixed: Sequence[str],
    output_dir: Path | None,
    json: bool,
) -> int:
    """Exit 0 where settings keep the SLO at some load, 1 where none do."""
    given = {key: value for key, value in tuning.items() if value not in (None, [], ())}
    budget = {name: given.pop(name) for name in ("wall", "trials") if name in given}
    told = {**given, **({"budget": budget} if budget else {}), **({"fixed": parse_settings(fixed)} if fixed else {})}
    spec = request(model, {**flags, "tuning": told or {}}, demo=demo)
    if not spec.slo.limits:
        raise SpecInvalid(
            "tuning needs an SLO",
            cause="without limits every load is kept, and more load is only more queueing",
            fix="say what must hold, for example --slo ttft_p99=500ms --slo tpot_p99=30ms",
        )
    with ProgressView(quiet=json) as view:
        ask = None if demo or json else partial(may_install, view)
        try:
            manifest = api.tune(spec, show=view, output_dir=output_dir, ask=ask)
        except KeyboardInterrupt:
            if not json:
                show_tunings(Console(highlight=False), api.status(None))
            raise
    if json:
        print(manifest.to_json().decode())
    else:
        console = Console(highlight=False)
        show_tunings(console, manifest)
        folder = output_dir or api.home() / "runs" / manifest.run_id
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    return 0 if manifest.winner else EXIT_NOTHING_MEETS


def parse_settings(options: Sequence[str]) -> dict[str, Scalar]:
    """``["max_num_seqs=64", "enable_prefix_caching=false"]`` → values with their types."""
    found: dict[str, Scalar] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.strip():
            raise SpecInvalid(
                f"--set {option!r} is not a setting",
                cause="a setting is written NAME=VALUE, in the engine's own parameter names",
                fix="for example --set max_num_seqs=64",
            )
        found[name.strip()] = _typed(text.strip())
    return found


def _typed(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def show_tunings(console: Console, manifest: RunManifest) -> None:
    """Every trial with its outcome, then what was proven and the command that starts the winner."""
    for verdict in manifest.verdicts:
        if verdict.outcome in ("failed", "loses_accuracy"):
            console.print(f"[yellow]{escape(verdict.candidate.label)}[/]: {escape(verdict.reason)}")
    for tuning in manifest.tunings:
        show_tuning(console, tuning)


def show_tuning(console: Console, tuning: Tuning) -> None:
    """One candidate's search."""
    limits = ", ".join(f"{limit.name} {limit.limit:g}" for limit in tuning.slo.limits)
    console.print(f"\n[bold]{escape(tuning.candidate.label)}[/] {tuning.engine_version}  [dim]SLO {limits}[/]")
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name, justify in (
        ("trial", "left"),
        ("holds", "right"),
        ("predicted", "right"),
        ("settings, or why not", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for trial in tuning.trials:
        table.add_row(*_row(trial, tuning))
    console.print(table)
    if tuning.agreement is not None and tuning.agreement.goodput_error_p50 is not None:
        found = tuning.agreement
        rank = "" if found.rank is None else f", rank correlation {found.rank:.2f}"
        console.print(
            f"[dim]simulation against measurement: median error {format_share(found.goodput_error_p50 or 0)}{rank} "
            f"over {found.num_trials} trials; {found.false_passes} of {found.num_passes} loads that it let pass did "
            "not[/]"
        )
    if tuning.stress is not None:
        word = "[green]survives[/]" if tuning.stress.passed else "[red]does not survive[/]"
        console.print(f"stress: {word} {tuning.stress.num_requests} requests, {tuning.stress.num_errors} errors")
    if tuning.confirmation is not None:
        _show_confirmation(console, tuning.confirmation, f"the default of {tuning.reference}")
    if tuning.over_own_default is not None:
        _show_confirmation(console, tuning.over_own_default, f"the default of {tuning.candidate.label}")
    if tuning.ended:
        console.print(f"[dim]{escape(tuning.ended)}[/]")
    if tuning.command is not None and tuning.winner is not None:
        console.print(f"start it with:\n  {escape(tuning.command)}", soft_wrap=True)


def _row(trial: Trial, tuning: Tuning) -> tuple[str, str, str, str]:
    unit = "/s" if tuning.spec.kind == "rate" else " users"
    mark = "[green]★[/] " if trial.number == tuning.winner else "  "
    predicted = "" if trial.predicted is None else f"{foreseen(trial.predicted):.3g}{unit}"
    text = _settings(trial.settings) or "the engine's defaults"
    if trial.outcome == "failed" and trial.run is not None and trial.run.failure is not None:
        failure = trial.run.failure
        return (
            f"{mark}{trial.number}",
            "[red]failed[/]",
            predicted,
            escape(f"{text}: {failure.finding.title if failure.finding else failure.cause}"),
        )
    if trial.outcome == "skipped":
        return f"{mark}{trial.number}", "[dim]skipped[/]", predicted, f"[dim]{escape(text)}[/]"
    holds = held(trial.boundary)
    found = f"{holds:.3g}{unit}" if holds else "[yellow]misses the SLO[/]"
    if trial.boundary is not None and trial.boundary.kept is not None and trial.boundary.broken is None:
        found = f"≥ {found}"
    return f"{mark}{trial.number}", found, predicted, escape(text)


def _settings(settings: Settings) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))


def _show_confirmation(console: Console, found: Confirmation, against: str) -> None:
    ratio = ""
    if found.ratio is not None:
        ratio = f"{found.ratio:.2f} times"
        if found.ratio_ci95 is not None:
            ratio += f" (95 %: {found.ratio_ci95[0]:.2f} to {found.ratio_ci95[1]:.2f})"
    console.print(f"confirmed {found.order}: {ratio} {escape(against)}: {VERDICTS[found.verdict]}")
    for shape, pairs in found.held_out.items():
        told = ", ".join(f"{name} {format_seconds(a)} → {format_seconds(b)}" for name, (a, b) in pairs.items())
        console.print(f"  [dim]{escape(shape)}: {told}[/]")
