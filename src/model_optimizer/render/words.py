"""Numbers and comparisons in words, the same way everywhere in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import datetime

from model_optimizer.records.measurement import AccuracyScore
from model_optimizer.records.workload import Load
from model_optimizer.units import format_bytes, format_seconds

NOTHING = "–"
"""Stands where there is no number: unknown is never zero."""

NBSP = "\u00a0"
"""Keeps a percent sign beside its number."""

SAME = 0.02
"""Changes smaller than this share are called the same: a single run cannot tell them apart."""


def number(value: float | None) -> str:
    """Three significant digits, thousands apart: ``36.4``, ``30.0``, ``2,337``; below one without trailing zeros."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "not finite"
    size = abs(value)
    if size >= 1:
        return f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
    return f"{value:.3g}"


def plain(value: float) -> str:
    """A number that somebody chose, as they would write it: ``5``, ``0.85``."""
    return f"{value:,.6g}"


def seconds(value: float | None) -> str:
    """``41 ms``; a dash where unknown."""
    return NOTHING if value is None else format_seconds(value) if math.isfinite(value) else "not finite"


def size(value: float | None) -> str:
    """``1.25 GiB``; a dash where unknown."""
    return NOTHING if value is None else format_bytes(value)


def perplexity(value: float | None) -> str:
    """Four significant digits: differences that matter are small."""
    return NOTHING if value is None else f"{value:.4g}" if math.isfinite(value) else "not finite"


def perplexity_change(score: AccuracyScore) -> str:
    """``+3.89 %``; where the 95 % interval holds "no change", that."""
    low, high = score.perplexity_ci95
    return "unchanged within the noise" if low <= 1.0 <= high else signed_share(score.perplexity_rise)


def share(value: float | None) -> str:
    """``95.9 %``."""
    return NOTHING if value is None else f"{number(value * 100)}{NBSP}%"


def signed_share(value: float | None) -> str:
    """``+0.4 %``, ``−1.2 %`` with a true minus sign."""
    if value is None or not math.isfinite(value):
        return NOTHING if value is None else "not finite"
    text = number(abs(value) * 100)
    return f"{'' if text == '0' else '−' if value < 0 else '+'}{text}{NBSP}%"


def times(new: float, old: float) -> str | None:
    """``5.2``, of ``new`` against ``old``; ``None`` where there is nothing to divide by."""
    ratio = new / old if old > 0 else math.inf
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}" if math.isfinite(ratio) else None


def change(new: float, old: float) -> str | None:
    """``58 % less``, ``12 % more``, ``the same``."""
    if old <= 0:
        return None
    ratio = new / old - 1.0
    if abs(ratio) < SAME:
        return "the same"
    if ratio > 1.0:
        return f"{times(new, old)} times"
    return f"{abs(ratio) * 100:.0f}{NBSP}% {'less' if ratio < 0 else 'more'}"


def load(value: Load) -> str:
    """``one user``, ``8 users at once``, ``4 requests a second``."""
    if value.concurrency is not None:
        return "one user" if value.concurrency == 1 else f"{value.concurrency:,} users at once"
    rate = value.rate_per_s or 0.0
    return "1 request a second" if rate == 1 else f"{rate:g} requests a second"


def moment(value: str) -> str:
    """``2026-12-01 09:30 UTC``; anything that is not an ISO time as it is."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{at:%Y-%m-%d %H:%M}{' UTC' if at.tzinfo and not at.utcoffset() else f' {at:%z}' if at.tzinfo else ''}"


def shorten(text: str, longest: int = 60) -> str:
    """Cut with an ellipsis where longer."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def counted(n: int, one: str, many: str | None = None) -> str:
    """``1 candidate``, ``3 candidates``."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def joined(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    items = list(parts)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def flattened(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """A nested value as dotted names and leaves, lists of plain values in one piece."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for index, inner in enumerate(value):
            yield from flattened(inner, f"{path}[{index}]")
    else:
        yield path, value
