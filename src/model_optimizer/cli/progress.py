"""The event stream as a progress view: one bar for what is running, one line for each thing that is done."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from model_optimizer.units import format_bytes, format_seconds

MARKS = {"run": "[green]✓[/]", "remembered": "[cyan]•[/]", "failed": "[red]✗[/]"}


class ProgressView:
    """A reader of events, called like ``Emit``. Quiet (no bar) where stderr is not a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, quiet=quiet)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, count="", visible=False)
        self._stage = ""

    def __enter__(self) -> ProgressView:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def pause(self) -> None:
        """Take the bar away, for a question."""
        self._progress.stop()

    def resume(self) -> None:
        """Show the bar again."""
        self._progress.start()

    def __call__(self, kind: str, **fields: object) -> None:
        """Show one event; kinds that nobody needs to see are passed over."""
        show = getattr(self, f"_on_{kind}", None)
        if show is not None:
            show(**fields)

    def _on_run_started(self, run: str, folder: str) -> None:
        self.console.print(f"run [bold]{escape(run)}[/]  [dim]{escape(folder)}[/]")

    def _on_stage_started(self, stage: str, subject: str, **_: object) -> None:
        self._stage = f"{stage} {subject}"
        self._progress.reset(self._task, total=None, description=escape(self._stage), count="", visible=True)

    def _on_progress(self, what: str, done: float = 0, total: float | None = None, unit: str = "", **_: object) -> None:
        description = f"{self._stage}: {what}" if self._stage else what
        self._progress.update(
            self._task,
            description=escape(description),
            completed=done,
            total=total,
            count=_count(done, total, unit),
            visible=True,
        )

    def _on_stage_finished(self, stage: str, subject: str, status: str, seconds: float, **_: object) -> None:
        self._stage = ""
        self._progress.update(self._task, visible=False)
        took = "remembered" if status == "remembered" else format_seconds(seconds)
        self.console.print(f"  {MARKS.get(status, '')} {stage:<10} {escape(subject):<34} [dim]{took}[/]")

    def _on_planned(self, candidates: list[str], refused: int) -> None:
        listed = escape(", ".join(candidates))
        self.console.print(f"  plan: {listed}" + (f"  [dim]({refused} refused, with reasons)[/]" if refused else ""))

    def _on_verdict(self, candidate: str, outcome: str, reason: str) -> None:
        style = {"meets_slo": "green", "failed": "red"}.get(outcome, "yellow")
        self.console.print(f"    [{style}]{outcome.replace('_', ' ')}[/] {escape(candidate)}: {escape(reason)}")

    def _on_trial_started(self, number: int, role: str, settings: dict[str, object], why: str, **_: object) -> None:
        listed = ", ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "the engine's defaults"
        self.console.print(f"  trial {number}  {escape(listed)}  [dim]{escape(why)}[/]")

    def _on_trial_load(self, load: str, kept: bool, margin: float, **_: object) -> None:
        style, word = ("green", "keeps") if kept else ("yellow", "breaks")
        self.console.print(f"    [dim]{escape(load):<10}[/] [{style}]{word} the SLO[/] [dim](margin {margin:+.0%})[/]")

    def _on_trial_finished(self, number: int, outcome: str, holds: float, best: int | None, best_holds: float) -> None:
        told = f"holds {holds:.3g}" if outcome == "measured" and holds else outcome
        leads = "" if best is None else f"  [dim]best: trial {best}, {best_holds:.3g}[/]"
        if outcome != "skipped":
            self.console.print(f"    trial {number}: {told}{leads}")

    def _on_note(self, text: str) -> None:
        self.console.print(f"  [dim]{escape(text)}[/]")


def _count(done: float, total: float | None, unit: str) -> str:
    if total is None:
        return ""
    if unit == "bytes":
        return f"{format_bytes(done)} / {format_bytes(total)}"
    return f"{done:.0f}/{total:.0f} {unit}".rstrip()
