"""Records as tables for the terminal. Nothing is computed here."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model_optimizer.records.candidate import Candidate, Plan
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.measurement import Distribution, LoadResult, Measurement
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.run import RunManifest
from model_optimizer.records.verdict import Check, Verdict
from model_optimizer.units import format_bytes, format_count, format_seconds, format_share

DASH = "[dim]–[/]"
SEVERITY = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


def show_summary(console: Console, manifest: RunManifest) -> None:
    """The end of a run: baseline against every candidate, then one sentence."""
    table = Table(title=None, box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for column in ("", "outcome", "tok/s", "TTFT", "TPOT", "memory", "perplexity"):
        table.add_column(column, justify="left" if column in ("", "outcome") else "right", no_wrap=True)
    if manifest.baseline is not None:
        base = manifest.baseline
        perplexity = f"{base.reference.perplexity:.2f}" if base.reference else DASH
        table.add_row(*_row(base.candidate, "[dim]baseline[/]", base.measurement), perplexity)
    for verdict in manifest.verdicts:
        style = {"meets_slo": "green", "failed": "red", "not_tried": "dim"}.get(verdict.outcome, "yellow")
        mark = " ★" if verdict.candidate.id == manifest.winner else ""
        outcome = f"[{style}]{verdict.outcome.replace('_', ' ')}{mark}[/]"
        rise = DASH if verdict.accuracy is None else f"{verdict.accuracy.perplexity_rise:+.1%}"
        table.add_row(*_row(verdict.candidate, outcome, verdict.measurement), rise)
    memory = "the host's peak, not the GPU's" if manifest.host and manifest.host.gpus else "peak"
    console.print()
    console.print(table)
    console.print(f"[dim]measured at the lightest load; TTFT and TPOT: medians; memory: {memory}[/]")
    console.print()
    console.print(headline(manifest))


def headline(manifest: RunManifest) -> str:
    """The result in one sentence, against the baseline where there is one."""
    verdict = manifest.winning
    if verdict is None:
        close = next((v for v in manifest.verdicts if v.candidate.id == manifest.nearest), None)
        if close is None:
            return "[yellow]No candidate could be measured.[/] The reasons are in the table and in the report."
        return f"[yellow]Nothing meets the SLO.[/] Nearest: {escape(close.candidate.label)} ({escape(close.reason)})"
    parts = [f"[green]Winner: {escape(verdict.candidate.label)}[/]"]
    base = manifest.baseline
    if base is not None and verdict.measurement is not None:
        ours, theirs = verdict.measurement.loads[0], base.measurement.loads[0]
        if theirs.output_tokens_per_s:
            ratio = ours.output_tokens_per_s / theirs.output_tokens_per_s
            parts.append(f"{ratio:.1f}x the baseline's tokens/s at {ours.load}")
        if verdict.measurement.server and base.measurement.server:
            saved = 1 - verdict.measurement.server.peak_memory_bytes / base.measurement.server.peak_memory_bytes
            parts.append(f"{format_share(abs(saved))} {'less' if saved >= 0 else 'more'} peak memory")
    if verdict.accuracy is not None:
        parts.append(f"perplexity {verdict.accuracy.perplexity_rise:+.2%}, KL {verdict.accuracy.kl_mean:.4f} nats")
    if verdict.best_load is not None and verdict.goodput_per_s is not None:
        parts.append(f"keeps the SLO up to {verdict.best_load} ({verdict.goodput_per_s:.2f} good requests/s)")
    return ", ".join(parts)


def show_model(console: Console, model: ModelSpec) -> None:
    """What a checkpoint is."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    moe = f", {model.moe.num_experts} experts, {model.moe.experts_per_token} a token" if model.moe else ""
    rows = [
        ("model", escape(model.source)),
        ("architecture", f"{escape(model.architecture)} ({model.format})"),
        ("parameters", f"{format_count(model.num_parameters)}{moe}"),
        ("weights", f"{format_bytes(model.weight_bytes)} as {model.quantized_as or model.weight_dtype}"),
        ("layers", f"{model.num_layers} of width {model.hidden_size}"),
        (
            "attention",
            f"{model.attention}: {model.num_attention_heads} heads, {model.num_kv_heads} KV heads of {model.head_dim}",
        ),
        ("context", f"{model.max_position_embeddings} tokens, vocabulary {model.vocab_size}"),
        (
            "KV cache",
            f"{format_bytes(model.kv_bytes_per_token())} a token in 16 bit, "
            f"{format_bytes(model.kv_bytes(model.max_position_embeddings))} for one full context",
        ),
    ]
    for name, value in rows:
        grid.add_row(name, value)
    console.print(grid)
    if model.weight_classes:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2))
        for column in ("weights", "parameters", "size", "dtype"):
            table.add_column(column, justify="right" if column in ("parameters", "size") else "left")
        for item in model.weight_classes:
            table.add_row(
                item.name, format_count(item.parameters), format_bytes(item.weight_bytes), ", ".join(item.dtypes)
            )
        console.print()
        console.print(table)
    console.print()
    for check in model.health:
        style = SEVERITY[check.severity]
        console.print(f"[{style}]{check.severity:<7}[/] {escape(check.message)}")
        if check.fix and check.severity != "ok":
            console.print(f"        [dim]fix: {escape(check.fix)}[/]")


def show_plan(console: Console, model: ModelSpec, host: HostSpec, plan: Plan) -> None:
    """Candidates in order, with predictions; then what was refused."""
    console.print(f"{escape(model.source)} on {escape(host.cpu_name)}, {host.cpu_cores} cores")
    console.print(f"[dim]context per sequence: {plan.baseline.max_model_len} tokens[/]\n")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2))
    for column in ("", "candidate", "weights", "memory", "why"):
        table.add_column(column, justify="right" if column in ("weights", "memory") else "left")
    estimate = plan.baseline_estimate
    table.add_row(
        "[dim]0[/]",
        plan.baseline.label,
        format_bytes(estimate.weight_bytes),
        format_bytes(estimate.memory_bytes),
        "[dim]baseline: the model as it came[/]",
    )
    for number, item in enumerate(plan.candidates, 1):
        table.add_row(
            str(number),
            item.candidate.label,
            format_bytes(item.estimate.weight_bytes),
            format_bytes(item.estimate.memory_bytes),
            escape(item.why),
        )
    console.print(table)
    console.print("[dim]sizes are predicted[/]")
    for refusal in plan.refused:
        console.print(
            f"\n[yellow]left out[/] {escape(refusal.route)}  [dim]{refusal.code}[/]\n  {escape(refusal.reason)}"
        )
        if refusal.fix:
            console.print(f"  [dim]way out: {escape(refusal.fix)}[/]")


def show_status(console: Console, manifest: RunManifest) -> None:
    """What was run and what was remembered."""
    console.print(f"[bold]{escape(manifest.run_id)}[/]  {manifest.status}  [dim]{manifest.started_at}[/]\n")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2))
    for column in ("stage", "subject", "status", "took", "key"):
        table.add_column(column, justify="right" if column == "took" else "left")
    for stage in manifest.stages:
        style = {"failed": "red", "remembered": "cyan"}.get(stage.status, "green")
        took = format_seconds(stage.seconds) if stage.status != "remembered" else ""
        table.add_row(stage.stage, escape(stage.subject), f"[{style}]{stage.status}[/]", took, stage.key[:12])
    console.print(table)
    if manifest.error:
        console.print(f"\n[red]{manifest.error['error']}[/] {escape(str(manifest.error['what']))}")
        console.print(f"  fix  {escape(str(manifest.error['fix']))}")
    if manifest.verdicts:
        show_summary(console, manifest)


def show_loads(console: Console, loads: tuple[LoadResult, ...], checks: tuple[Check, ...]) -> None:
    """Results of a load test, one line a load, with every reason to doubt them."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for column in ("load", "n", "errors", "TTFT ms", "TPOT ms", "ITL ms", "tok/s", "req/s", "good"):
        table.add_column(column, justify="left" if column == "load" else "right", no_wrap=True)
    for result in loads:
        table.add_row(
            str(result.load),
            str(result.num_requests),
            format_share(result.error_rate) if result.num_errors else "0",
            _pair(result.ttft_s),
            _pair(result.tpot_s),
            _pair(result.itl_s),
            f"{result.output_tokens_per_s:.0f}",
            f"{result.request_rate_per_s:.2f}",
            format_share(result.good_share),
        )
    console.print(table)
    console.print("[dim]latencies: P50 / P99, milliseconds[/]")
    for result in loads:
        for note in result.notes:
            console.print(f"[yellow]{result.load}[/] {escape(note)}")
    show_checks(console, checks)


def show_checks(console: Console, checks: tuple[Check, ...]) -> None:
    """Each limit with what was found."""
    for check in checks:
        mark = "[dim]?[/]" if check.ok is None else "[green]✓[/]" if check.ok else "[red]✗[/]"
        console.print(f"{mark} {escape(check.name)}: {escape(check.found)}, limit {escape(check.limit)}")


def show_runs(console: Console, manifests: list[RunManifest]) -> None:
    """All runs, one line each."""
    for manifest in manifests:
        verdict: Verdict | None = manifest.winning
        won = f"winner {verdict.candidate.label}" if verdict else ""
        console.print(f"{escape(manifest.run_id)}  {manifest.status}  [dim]{manifest.started_at}[/]  {escape(won)}")


def _row(candidate: Candidate, outcome: str, measured: Measurement | None) -> tuple[str, ...]:
    if measured is None:
        return (escape(candidate.label), outcome, DASH, DASH, DASH, DASH)
    first = measured.loads[0]
    return (
        escape(candidate.label),
        outcome,
        f"{first.output_tokens_per_s:.1f}",
        _time(first, "ttft_s", "p50"),
        _time(first, "tpot_s", "p50"),
        format_bytes(measured.server.peak_memory_bytes) if measured.server else DASH,
    )


def _pair(samples: Distribution | None) -> str:
    return DASH if samples is None else f"{samples.p50 * 1e3:.3g} / {samples.p99 * 1e3:.3g}"


def _time(result: LoadResult, metric: str, statistic: str) -> str:
    distribution = getattr(result, metric)
    return DASH if distribution is None else format_seconds(getattr(distribution, statistic))
