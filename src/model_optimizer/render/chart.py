"""What every picture of a report is made of: a chart as data, its table, and the parts they share.

The browser only draws (templates/charts.js); every choice (unit, scale, order, words of a tip) is made in Python.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from model_optimizer.records.run import RunManifest
from model_optimizer.records.workload import LATENCY_METRICS, Limit
from model_optimizer.render import words
from model_optimizer.render.series import Series
from model_optimizer.units import format_bytes

Kind = Literal["curves", "rows", "scatter", "timeline", "pareto"]
Data = dict[str, Any]
"""JSON for the browser: numbers in the unit they are drawn in."""


@dataclass(frozen=True)
class Table:
    """The numbers under a picture: they serve who cannot see it, and who wants to copy them."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Chart:
    """One picture. ``says`` is what it shows, where that can be told from the numbers; ``how`` is how to read it.

    ``absent`` says why there is none; then there is no data either.
    """

    id: str
    title: str
    how: str = ""
    says: str = ""
    kind: Kind = "rows"
    data: Data = field(default_factory=dict)
    table: Table = Table((), ())
    absent: str | None = None


def who(series: Series) -> Data:
    """Whom a mark stands for; the role gives its colour."""
    return {"id": series.id, "name": series.name, "role": series.role}


def limit_lines(manifest: RunManifest, metric: str, factor: float) -> list[Data]:
    """The limits the request sets for this metric, scaled by ``factor`` to the unit of the axis."""
    at = manifest.spec.slo.at
    where = f" (asked at {at})" if at else ""
    return [
        {"value": limit.limit * factor, "label": limit_words(limit) + where, "at_least": limit.at_least}
        for limit in manifest.spec.slo.limits
        if limit.metric == metric
    ]


def limit_words(limit: Limit) -> str:
    """``p99 at most 1.5 s``: a promise in the unit of its metric."""
    if limit.metric in LATENCY_METRICS:
        value = words.seconds(limit.limit)
    elif limit.metric == "peak_memory":
        value = words.size(limit.limit)
    elif limit.metric == "error_rate":
        value = f"{words.plain(limit.limit * 100)} %"
    else:
        value = f"{words.plain(limit.limit)} {'tokens/s' if limit.metric == 'output_tokens_per_s' else 'requests/s'}"
    statistic = "" if limit.statistic == "value" else f"{limit.statistic} "
    return f"{statistic}{'at least' if limit.at_least else 'at most'} {value}"


def byte_unit(largest: float) -> tuple[str, float]:
    """The binary unit in which people would write the largest, and the factor to it."""
    unit = format_bytes(largest).rpartition(" ")[2]
    return unit, {"TiB": 2.0**-40, "GiB": 2.0**-30, "MiB": 2.0**-20, "KiB": 2.0**-10}.get(unit, 1.0)


def finite(value: Any) -> Any:
    """The same value with every NaN and infinity as ``None``: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value
