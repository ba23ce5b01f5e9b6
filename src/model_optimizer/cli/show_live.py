"""A live server's diagnosis on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model_optimizer.records.live import Between, LiveDiagnosis, LiveFinding, Window, WindowLatency
from model_optimizer.units import format_seconds, format_share

_LATENCIES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E", "queue": "queue time"}


def show_live(console: Console, found: LiveDiagnosis) -> None:
    """Regimes with their numbers and levers, the window, the SLO; or what would tell."""
    who = " ".join(filter(None, (found.engine or "unknown engine", found.version, found.model)))
    over = f" watched for {format_seconds(found.window.seconds)}" if found.window is not None else ""
    console.print(f"[dim]{escape(who)}{over}[/]", soft_wrap=True)
    for number, finding in enumerate(found.findings):
        _show_finding(console, finding, is_first=number == 0)
    if not found.findings:
        console.print("[yellow]Not enough to tell.[/]")
    if found.window is not None and found.window.num_looks > 1:
        _show_window(console, found.window)
    for check in found.checks:
        mark = {True: "[green]kept[/]", False: "[red]broken[/]", None: "[yellow]undecided[/]"}[check.ok]
        console.print(f"  {mark}  {check.name} {check.limit}: {check.found}")
    for note in found.notes:
        console.print(f"  [dim]{escape(note)}[/]")
    if found.ask_for:
        console.print("What would tell:")
        for question in found.ask_for:
            console.print(f"  - {escape(question)}")


def _show_finding(console: Console, finding: LiveFinding, *, is_first: bool) -> None:
    style = "bold" if is_first else "default"
    sure = f"[dim]{finding.confidence:.0%} sure  {finding.regime}[/]"
    console.print(f"[{style}]{escape(finding.title)}[/]  {sure}")
    if is_first:
        console.print(f"  {escape(finding.means)}")
    for number in finding.deciders:
        console.print(f"  {escape(number.name)}: {escape(number.found)}  [dim]({escape(number.threshold)})[/]")
    for lever in finding.levers:
        now = f" (now {lever.now})" if lever.now is not None else ""
        what = f"{lever.direction} {lever.flag or ''}".strip()
        console.print(f"  [green]{escape(what)}[/]{escape(now)}: {escape(lever.why)}")
    console.print()


def _show_window(console: Console, w: Window) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    plain = {
        "running, waiting": None if w.running is None else f"{w.running:.1f}, {w.waiting or 0:.1f}",
        "KV cache in use": None if w.kv_usage is None else format_share(w.kv_usage),
        "prompt tokens/s": None if w.prompt_tokens_per_s is None else f"{w.prompt_tokens_per_s:.0f}",
        "answer tokens/s": None if w.generation_tokens_per_s is None else f"{w.generation_tokens_per_s:.0f}",
        "requests/s": None if w.requests_per_s is None else f"{w.requests_per_s:.2g}",
        "from the prefix cache": None if w.prefix_hit_share is None else format_share(w.prefix_hit_share),
        "preemptions": None if w.preemptions is None else f"{w.preemptions:.0f}",
        "finished": ", ".join(f"{n:.0f} {reason}" for reason, n in w.finished.items()) or None,
        "steps/s": None if w.steps_per_s is None else f"{w.steps_per_s:.1f}",
        "cores, busiest process": None if w.busiest_process_cores is None else f"{w.busiest_process_cores:.2f}",
        "GPU busy": None if w.gpu_busy is None else format_share(w.gpu_busy),
    }
    for name, value in plain.items():
        if value is not None:
            table.add_row(name, value)
    for field, title in _LATENCIES.items():
        seen: WindowLatency | None = getattr(w, field)
        if seen is not None:
            quantiles = f"P50 {_between(seen.p50)}, P99 {_between(seen.p99)}"
            table.add_row(title, f"mean {format_seconds(seen.mean)}, {quantiles}  ({seen.count} seen)")
    console.print(table)


def _between(quantile: Between) -> str:
    if quantile.high is None:
        return f"above {format_seconds(quantile.low)}"
    return (
        f"{format_seconds(quantile.value)} [dim]({format_seconds(quantile.low)} to {format_seconds(quantile.high)})[/]"
    )
