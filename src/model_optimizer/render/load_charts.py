"""Pictures against load: latency from p50 to p99, and throughput."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from model_optimizer.records.measurement import Distribution, LoadResult
from model_optimizer.records.run import RunManifest
from model_optimizer.records.workload import Limit, Load
from model_optimizer.render import words
from model_optimizer.render.chart import Chart, Data, Table, limit_lines, limit_words, who
from model_optimizer.render.series import STATES, Series, best

LOG_BEYOND = 4.0
"""Where the largest value is more than this many times the winner's, an axis from zero would squash the winner."""

LOG_BEYOND_LIMIT = 12.0
"""The same for a limit, which may lie lower."""

NO_LOAD_TEST = "No load test has finished, so there is nothing to draw."

USERS, ARRIVALS = "users at once", "requests arriving a second"


def latency_chart(
    manifest: RunManifest,
    series: tuple[Series, ...],
    metric: str,
    title: str,
    of: Callable[[LoadResult], Distribution | None],
) -> Chart:
    """One latency metric of every candidate over all loads, with the limits set for it."""
    id = f"latency-{metric}"
    found = [(s, r, d) for s in series for r in s.loads if (d := of(r)) is not None]
    if not found:
        return Chart(id, title, absent=NO_LOAD_TEST)
    unit, factor = ("ms", 1e3) if max(d.p99 for _, _, d in found) < 2.0 else ("s", 1.0)
    points: dict[str, list[Data]] = {}
    for s, r, d in found:
        p50, p99 = words.seconds(d.p50), words.seconds(d.p99)
        tip = f"{s.name}\n{words.load(r.load)}\np50 {p50}, p99 {p99}\nmeasured, n = {d.n}"
        points.setdefault(s.id, []).append(_point(r.load, d.p50 * factor, d.p99 * factor, tip, f"{p50} – {p99}"))
    head = ("Candidate", "Load", "n", "Mean", "SD", "p50", "p90", "p95", "p99", "Max")
    rows = tuple(
        (s.name, str(r.load), f"{d.n:,}", *map(words.seconds, (d.mean, d.stdev, d.p50, d.p90, d.p95, d.p99, d.max)))
        for s, r, d in found
    )
    scale = _scale(series, points, limit_lines(manifest, metric, factor), unit)
    if _several_loads(points):
        how = "From the median (p50, thin line) to the 99th percentile (p99, bold line)."
        chart = _curves(id, title, how, scale, series, points, Table(head, rows))
    else:
        how = "From the median (p50, dot) to the 99th percentile (p99, end of the line)."
        chart = _rows(id, title, how, scale, series, points, Table(head, rows))
    return replace(chart, says=_latency_says(manifest, best(series), metric, of))


def _latency_says(
    manifest: RunManifest, chosen: Series | None, metric: str, of: Callable[[LoadResult], Distribution | None]
) -> str:
    """How far the chosen candidate keeps the first limit on this metric; without a limit, its range."""
    found = [(r.load, d) for r in chosen.loads if (d := of(r)) is not None] if chosen else []
    if chosen is None or not found:
        return ""
    limit = next((limit for limit in manifest.spec.slo.limits if limit.metric == metric), None)
    if limit is None:
        (low, first), (high, last) = found[0], found[-1]
        start = f"{chosen.name}: {metric.upper()} p99 {words.seconds(first.p99)} for {words.load(low)}"
        return f"{start}, {words.seconds(last.p99)} for {words.load(high)}." if len(found) > 1 else f"{start}."
    kept = [load for load, d in itertools.takewhile(lambda pair: _statistic(pair[1], limit) <= limit.limit, found)]
    promise = f"{metric.upper()} {limit_words(limit)}"
    if len(kept) == len(found):
        return f"{chosen.name} keeps {promise} at every load measured, up to {words.load(kept[-1])}."
    return f"{chosen.name} keeps {promise} " + (f"up to {words.load(kept[-1])}." if kept else "at no load measured.")


def _statistic(distribution: Distribution, limit: Limit) -> float:
    return float(getattr(distribution, limit.statistic))


def throughput_chart(manifest: RunManifest, series: tuple[Series, ...]) -> Chart:
    """Output tokens a second of every candidate over all loads."""
    title = "Throughput against load"
    found = [(s, r) for s in series for r in s.loads]
    if not found:
        return Chart("throughput", title, absent=NO_LOAD_TEST)
    points: dict[str, list[Data]] = {}
    for s, r in found:
        speed = r.output_tokens_per_s
        lines = (
            s.name,
            words.load(r.load),
            f"{words.number(speed)} output tokens/s",
            f"{words.number(r.request_rate_per_s)} requests/s, goodput {words.number(r.goodput_per_s)}/s",
            f"measured, n = {r.num_requests}, {r.num_errors} failed",
        )
        points.setdefault(s.id, []).append(_point(r.load, speed, speed, "\n".join(lines), words.number(speed)))
    head = (
        "Candidate",
        "Load",
        "n",
        "Failed",
        "Output tok/s",
        "Input tok/s",
        "Requests/s",
        "Goodput/s",
        "Good",
        "Window",
    )
    rows = tuple((s.name, *_throughput_row(r)) for s, r in found)
    how = "Output tokens a second of all users together, over the steady window."
    limits = limit_lines(manifest, "output_tokens_per_s", 1.0)
    scale = {"unit": "", "log": False, "bar": True, "limits": limits}
    draw = _curves if _several_loads(points) else _rows
    chart = draw("throughput", title, how, scale, series, points, Table(head, rows))
    chosen = best(series)
    if chosen is None or not chosen.loads:
        return chart
    top = max(chosen.loads, key=lambda r: r.output_tokens_per_s)
    return replace(
        chart,
        says=f"{chosen.name} reaches {words.number(top.output_tokens_per_s)} tokens/s with {words.load(top.load)}.",
    )


def _throughput_row(result: LoadResult) -> tuple[str, ...]:
    rates = (result.output_tokens_per_s, result.input_tokens_per_s, result.request_rate_per_s, result.goodput_per_s)
    return (
        str(result.load),
        f"{result.num_requests:,}",
        str(result.num_errors),
        *map(words.number, rates),
        words.share(result.good_share),
        words.seconds(result.window_s),
    )


def _point(load: Load, lo: float, hi: float, tip: str, text: str) -> Data:
    kind, at = (USERS, float(load.concurrency)) if load.concurrency is not None else (ARRIVALS, load.rate_per_s or 0.0)
    said = words.load(load)
    return {"kind": kind, "at": at, "x": f"{at:g}", "lo": lo, "hi": hi, "tip": tip, "text": text, "load": said}


def _several_loads(points: dict[str, list[Data]]) -> bool:
    """True where any kind of load was measured at more than one level: then a curve says more than rows."""
    levels = {(p["kind"], p["at"]) for some in points.values() for p in some}
    return any(sum(kind == wanted for kind, _ in levels) > 1 for wanted in (USERS, ARRIVALS))


def _scale(series: tuple[Series, ...], points: dict[str, list[Data]], limits: list[Data], unit: str) -> Data:
    """The axis: logarithmic where the slowest candidate would press the winner, or a limit, to the floor."""
    largest = [max(p["hi"] for p in points[s.id]) for s in series if s.id in points]  # the winner's is the first
    floor = min([largest[0], *(limit["value"] * LOG_BEYOND_LIMIT / LOG_BEYOND for limit in limits)])
    positive = min(p["lo"] for some in points.values() for p in some) > 0 and floor > 0
    return {"unit": unit, "log": positive and max(largest) / floor > LOG_BEYOND, "bar": False, "limits": limits}


def _levels(points: dict[str, list[Data]], kind: str) -> list[float]:
    return sorted({p["at"] for some in points.values() for p in some if p["kind"] == kind})


def _curves(
    id: str, title: str, how: str, scale: Data, series: Sequence[Series], points: dict[str, list[Data]], table: Table
) -> Chart:
    """One small picture for each candidate, all on one scale; users and arrivals apart, for they cannot be compared."""
    groups = []
    for kind in (USERS, ARRIVALS):
        mine = {key: sorted((p for p in some if p["kind"] == kind), key=_at) for key, some in points.items()}
        if levels := _levels(points, kind):
            drawn = [{**who(s), "state": STATES[s.state], "points": mine[s.id]} for s in series if mine.get(s.id)]
            groups.append({"label": kind, "loads": [f"{at:g}" for at in levels], "series": drawn})
    values = [v for some in points.values() for p in some for v in (p["lo"], p["hi"])]
    top = max([*values, *(limit["value"] for limit in scale["limits"])])
    ghosts = " The pale lines are the other candidates, on the same scale." if len(points) > 1 else ""
    data = {**scale, "groups": groups, "max": top, "min": min([*values, *(x["value"] for x in scale["limits"])])}
    return Chart(id, title, how + ghosts, kind="curves", data=data, table=table)


def _at(point: Data) -> float:
    return float(point["at"])


def _rows(
    id: str, title: str, how: str, scale: Data, series: Sequence[Series], points: dict[str, list[Data]], table: Table
) -> Chart:
    """One row for each candidate; one panel for each kind of load."""
    panels = []
    for kind in (USERS, ARRIVALS):
        mine = [(s, p) for s in series for p in points.get(s.id, ()) if p["kind"] == kind]
        if mine:
            rows = [{**who(s), **p, "value": p["lo"]} for s, p in mine]
            panels.append({"title": rows[0]["load"], "zero": True, **scale, "rows": rows})
    return Chart(id, title, how, kind="rows", data={"panels": panels}, table=table)
