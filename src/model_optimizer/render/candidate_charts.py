"""Pictures that compare candidates: memory, quality, and one against the other."""

from __future__ import annotations

import math
from typing import NamedTuple

from model_optimizer.records.measurement import AccuracyScore
from model_optimizer.records.run import RunManifest
from model_optimizer.records.workload import Load
from model_optimizer.render import words
from model_optimizer.render.chart import Chart, Data, Table, byte_unit, limit_lines, who
from model_optimizer.render.series import Series, best


def memory_chart(manifest: RunManifest, series: tuple[Series, ...]) -> Chart:
    """Measured peak of each server, with the plan's prediction marked."""
    title = "Memory by candidate"
    known = [s for s in series if s.peak_memory_bytes is not None or s.estimate is not None]
    if not known:
        return Chart("memory", title, absent="No memory was measured or predicted.")
    sizes = [v for s in known for v in (s.peak_memory_bytes, s.estimate.memory_bytes if s.estimate else None) if v]
    unit, factor = byte_unit(max(sizes, default=0))
    limits = limit_lines(manifest, "peak_memory", factor)
    rows = [_memory_row(s, factor) for s in known]
    panel = {"title": "", "unit": unit, "log": False, "bar": True, "limits": limits, "rows": rows}
    head = ("Candidate", "Peak, measured", "After loading, measured", "Peak, predicted", "Off by", "Size on disk")
    how = (
        "Bar: measured peak of the server's process tree, shared pages counted once (PSS). "
        "Upright tick: what the plan predicted."
    )
    table = Table(head, tuple(_memory_cells(s) for s in known))
    return Chart("memory", title, how, _memory_says(best(series)), "rows", {"panels": [panel]}, table)


def _memory_says(chosen: Series | None) -> str:
    peak = chosen.peak_memory_bytes if chosen else None
    if chosen is None or not peak:
        return ""
    change = words.change(peak, chosen.estimate.memory_bytes) if chosen.estimate else None
    predicted = "" if change is None else ", as predicted" if change == "the same" else f", {change} than predicted"
    return f"{chosen.name} peaks at {words.size(peak)}{predicted}."


def _memory_row(series: Series, factor: float) -> Data:
    peak, predicted = series.peak_memory_bytes, series.estimate.memory_bytes if series.estimate else None
    off = f" ({words.signed_share(peak / predicted - 1)} against predicted)" if peak and predicted else ""
    measured = f"peak {words.size(peak)}, measured{off}" if peak else "never measured"
    return {
        **who(series),
        "value": peak * factor if peak else None,
        "mark": predicted * factor if predicted else None,
        "text": words.size(peak) if peak else f"{words.size(predicted)} predicted",
        "tip": f"{series.name}\n{measured}\npredicted {words.size(predicted)}",
    }


def _memory_cells(series: Series) -> tuple[str, ...]:
    peak, predicted = series.peak_memory_bytes, series.estimate.memory_bytes if series.estimate else None
    server = series.measurement.server if series.measurement else None
    off = words.signed_share(peak / predicted - 1) if peak and predicted else words.NOTHING
    loaded = server.loaded_memory_bytes if server else None
    return (series.name, *map(words.size, (peak, loaded, predicted)), off, words.size(series.size_bytes))


def quality_chart(manifest: RunManifest, series: tuple[Series, ...]) -> Chart:
    """Perplexity change with its interval, KL divergence and top-1 agreement, each with the limit asked for."""
    title = "Quality against the reference"
    known = [(s, s.accuracy) for s in series if s.accuracy is not None]
    if not known:
        off = not manifest.spec.validate_accuracy
        why = (
            "Validation was switched off in the request." if off else "No candidate came as far as the accuracy check."
        )
        return Chart("quality", title, absent=why)
    asked = manifest.spec.accuracy
    rises, divergences, agreements = zip(*(_quality_rows(s, a) for s, a in known), strict=True)
    panels = [
        _panel("Perplexity change, lower is better", "%", rises, asked.max_perplexity_rise * 100, "at most"),
        _panel("KL divergence, nats/token, lower is better", "", divergences, asked.max_kl, "at most"),
        _panel("Top-1 agreement, higher is better", "%", agreements, asked.min_top1_agreement * 100, "at least"),
    ]
    head = (
        "Candidate",
        "Perplexity",
        "Reference",
        "Change",
        "95 % interval",
        "KL mean",
        "KL p99",
        "Top-1",
        "Logits L2",
        "n",
    )
    table = Table(head, tuple(_quality_cells(s, a) for s, a in known))
    how = "Same tokens, same positions as the reference. Lines across the perplexity dots are 95 % intervals."
    return Chart("quality", title, how, _quality_says(best(series)), "rows", {"panels": panels}, table)


def _quality_says(chosen: Series | None) -> str:
    score = chosen.accuracy if chosen else None
    if chosen is None or score is None:
        return ""
    agreement = f"the same most likely token as the reference at {words.share(score.top1_agreement)} of the positions"
    return f"{chosen.name}: perplexity {words.perplexity_change(score)}, {agreement}."


def _quality_rows(series: Series, score: AccuracyScore) -> tuple[Data, Data, Data]:
    low, high = (end - 1 for end in score.perplexity_ci95)
    interval = f"{words.signed_share(low)} to {words.signed_share(high)}"
    tokens = f"measured, n = {score.num_tokens:,} tokens"
    positions = f"measured, n = {score.num_probe_positions:,} positions"
    rise = words.signed_share(score.perplexity_rise)
    divergence = f"{'≥ ' if score.kl_is_lower_bound else ''}{words.number(score.kl_mean)}"
    agreement = words.share(score.top1_agreement)
    return (
        {
            **who(series),
            "value": score.perplexity_rise * 100,
            "lo": low * 100,
            "hi": high * 100,
            "text": rise,
            "tip": f"{series.name}\nperplexity {rise}, 95 % interval {interval}\n{tokens}",
        },
        {
            **who(series),
            "value": score.kl_mean,
            "text": divergence,
            "tip": f"{series.name}\nKL mean {divergence}, p99 {words.number(score.kl_p99)} nats/token\n{positions}",
        },
        {
            **who(series),
            "value": score.top1_agreement * 100,
            "text": agreement,
            "tip": f"{series.name}\nsame most likely token at {agreement} of the positions\n{positions}",
        },
    )


def _quality_cells(series: Series, score: AccuracyScore) -> tuple[str, ...]:
    return (
        series.name,
        words.perplexity(score.perplexity),
        words.perplexity(score.reference_perplexity),
        words.signed_share(score.perplexity_rise),
        " to ".join(words.signed_share(end - 1) for end in score.perplexity_ci95),
        words.number(score.kl_mean),
        words.number(score.kl_p99),
        words.share(score.top1_agreement),
        words.number(score.logits_relative_l2),
        f"{score.num_tokens:,}",
    )


def _panel(title: str, unit: str, rows: tuple[Data, ...], limit: float, word: str) -> Data:
    at_least = word == "at least"
    line = {"value": limit, "label": f"{word} {words.plain(limit)} {unit}".strip(), "at_least": at_least}
    return {
        "title": title,
        "unit": unit,
        "log": False,
        "bar": False,
        "zero": not at_least,
        "limits": [line],
        "rows": list(rows),
    }


class _Point(NamedTuple):
    """A candidate with everything the trade-off needs. ``change``, ``low`` and ``high`` are percent."""

    series: Series
    load: Load
    speed: float
    memory_bytes: int | None
    change: float
    low: float
    high: float


def tradeoff_chart(manifest: RunManifest, series: tuple[Series, ...]) -> Chart:
    """Perplexity change against speed and against memory, with the frontier of those that nothing beats in both."""
    title = "Quality against speed and memory"
    points = [point for s in series if (point := _tradeoff_point(s)) is not None]
    if len(points) < 2:
        return Chart("tradeoff", title, absent="It takes two candidates with both a load test and an accuracy check.")
    unit, factor = byte_unit(max((p.memory_bytes or 0) for p in points))
    speeds = [(p, p.speed) for p in points]
    memories = [(p, p.memory_bytes * factor) for p in points if p.memory_bytes]
    panels = [_tradeoff_panel(f"Output tokens/s at {points[0].load}", "right", speeds)]
    if len(memories) > 1:
        panels.append(_tradeoff_panel(f"Peak memory, {unit}", "left", memories))
    edge = {dot["id"] for panel in panels for dot in panel["frontier"]}
    head = ("Candidate", "Perplexity change", "Output tok/s", "Load", "Peak memory", "Size on disk", "On a frontier")
    rows = tuple(
        (
            p.series.name,
            words.signed_share(p.change / 100),
            words.number(p.speed),
            str(p.load),
            words.size(p.memory_bytes),
            words.size(p.series.size_bytes),
            "yes" if p.series.id in edge else "no",
        )
        for p in points
    )
    how = (
        "Lower is better, and so is further right for speed, further left for memory. "
        "The stepped line joins those that nothing beats in both."
    )
    limit = manifest.spec.accuracy.max_perplexity_rise * 100
    data = {"panels": panels, "limit": {"value": limit, "label": f"at most {words.plain(limit)} %"}}
    return Chart("tradeoff", title, how, "", "scatter", data, Table(head, rows))


def _tradeoff_point(series: Series) -> _Point | None:
    score = series.accuracy
    change = 0.0 if series.role == "baseline" else score.perplexity_rise if score else None
    if change is None or not series.loads or not math.isfinite(change):
        return None
    low, high = score.perplexity_ci95 if score else (1.0, 1.0)
    first = series.loads[0]
    memory = series.peak_memory_bytes
    return _Point(
        series, first.load, first.output_tokens_per_s, memory, change * 100, (low - 1) * 100, (high - 1) * 100
    )


def _tradeoff_panel(label: str, better: str, placed: list[tuple[_Point, float]]) -> Data:
    dots = []
    for p, x in placed:
        said = f"perplexity {words.signed_share(p.change / 100)}" if p.series.accuracy else "the reference itself"
        facts = f"{words.number(p.speed)} output tokens/s at {p.load}\npeak memory {words.size(p.memory_bytes)}"
        tip = f"{p.series.name}\n{said}\n{facts}\nmeasured"
        dots.append({**who(p.series), "x": x, "y": p.change, "lo": p.low, "hi": p.high, "tip": tip})
    return {
        "label": label,
        "better": better,
        "dots": dots,
        "frontier": frontier(dots, more_is_better=better == "right"),
    }


def frontier(dots: list[Data], *, more_is_better: bool) -> list[Data]:
    """Those that no other beats in both: a smaller ``y``, and a larger (or smaller) ``x``. In the order of ``x``."""
    sign = -1.0 if more_is_better else 1.0
    kept: list[Data] = []
    for dot in sorted(dots, key=lambda d: (sign * d["x"], d["y"])):
        if not kept or dot["y"] < kept[-1]["y"]:
            kept.append({"id": dot["id"], "x": dot["x"], "y": dot["y"]})
    return sorted(kept, key=lambda d: float(d["x"]))
