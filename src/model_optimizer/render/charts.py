"""All pictures of a report, in reading order."""

from __future__ import annotations

from collections.abc import Iterable

from model_optimizer.records.run import RunManifest, StageRecord
from model_optimizer.render import words
from model_optimizer.render.candidate_charts import memory_chart, quality_chart, tradeoff_chart
from model_optimizer.render.chart import Chart, Data, Table
from model_optimizer.render.load_charts import latency_chart, throughput_chart
from model_optimizer.render.series import Series

MINUTES_BEYOND_S = 300.0
"""Longer steps than this are drawn in minutes."""


def charts(manifest: RunManifest, series: tuple[Series, ...]) -> tuple[Chart, ...]:
    """Latency, throughput, memory, quality, what one costs in the other, and where the time went."""
    return (
        latency_chart(manifest, series, "ttft", "Time to first token (TTFT) against load", lambda r: r.ttft_s),
        latency_chart(manifest, series, "tpot", "Time per output token (TPOT) against load", lambda r: r.tpot_s),
        throughput_chart(manifest, series),
        memory_chart(manifest, series),
        quality_chart(manifest, series),
        tradeoff_chart(manifest, series),
        time_chart(manifest, series),
    )


def time_chart(manifest: RunManifest, series: tuple[Series, ...]) -> Chart:
    """The steps of each candidate one after the other: run, failed, or remembered (with what they once took)."""
    title = "Where the time went"
    if not manifest.stages:
        return Chart("time", title, absent="No step has finished yet.")
    names = {s.candidate.id: s.name for s in series}
    longest = max(_taken(r) for r in manifest.stages)
    unit, factor = ("min", 1 / 60) if longest > MINUTES_BEYOND_S else ("s", 1.0)
    rows: dict[str, list[StageRecord]] = {}
    for record in _once_each(manifest.stages):
        rows.setdefault(names.get(record.subject, record.subject), []).append(record)
    data = {"unit": unit, "rows": [_time_row(name, records, factor) for name, records in rows.items()]}
    head = ("Step", "Subject", "Status", "Time", "Once took", "When")
    table = tuple(
        (
            r.stage,
            names.get(r.subject, r.subject),
            r.status,
            words.seconds(r.seconds),
            words.seconds(r.first_seconds),
            words.moment(r.when),
        )
        for r in manifest.stages
    )
    remembered = sum(r.status == "remembered" for r in manifest.stages)
    spent = words.seconds(sum(r.seconds for r in manifest.stages))
    how = f"{words.counted(len(manifest.stages), 'step')}, {spent} spent; {remembered} remembered (outlined)."
    if remembered == len(manifest.stages):
        how = f"{words.counted(remembered, 'step')}, all remembered from earlier: nothing was computed again."
    return Chart("time", title, how, "", "timeline", data, Table(head, table))


def _once_each(records: Iterable[StageRecord]) -> list[StageRecord]:
    """Each step once, in order; a step both run and then looked up again counts as run."""
    found: dict[tuple[str, str, str], StageRecord] = {}
    for record in records:
        place = (record.stage, record.subject, record.key)
        if place not in found or found[place].status == "remembered":
            found[place] = record
    return list(found.values())


def _taken(record: StageRecord) -> float:
    return (record.first_seconds or record.seconds) if record.status == "remembered" else record.seconds


def _time_row(name: str, records: list[StageRecord], factor: float) -> Data:
    said = {"run": "run,", "failed": "failed after", "remembered": "remembered; once took"}
    parts = [
        {
            "stage": record.stage,
            "status": record.status,
            "length": _taken(record) * factor,
            "tip": f"{record.stage} · {name}\n{said[record.status]} {words.seconds(_taken(record))}\n"
            + words.moment(record.when),
        }
        for record in records
    ]
    spent = [record.seconds for record in records if record.status != "remembered"]
    return {"name": words.shorten(name), "text": words.seconds(sum(spent)) if spent else "remembered", "parts": parts}
