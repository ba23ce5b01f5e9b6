"""Predicted quantities for people, the same on the terminal and on the page."""

from __future__ import annotations

from model_optimizer.records.sizing import Span, Term
from model_optimizer.render.words import NOTHING
from model_optimizer.units import format_bytes, format_count, format_seconds


def money(value: float | None) -> str:
    """``$0.201``, ``$5.40``, ``$1,465``; a dash where nobody's price is known."""
    if value is None:
        return NOTHING
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}" if value >= 1 else f"${value:.3f}"


def span(value: Span) -> str:
    """``62–112 ms``: both ends in the unit of the middle."""
    unit, factor = ("s", 1.0) if value.value >= 1 else ("ms", 1e3) if value.value >= 1e-3 else ("µs", 1e6)
    low, high = value.low * factor, value.high * factor
    return f"{low:.3g}–{high:.3g} {unit}" if high < 1000 else f"{low:.0f}–{high:.0f} {unit}"


def quantity(term: Term) -> str:
    """The value of a line of arithmetic in a unit for people; empty where the line is words."""
    value, unit = term.value, term.unit
    if value is None:
        return ""
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    if unit == "B/s":
        return f"{value / 1e9:,.0f} GB/s"
    if unit in ("FLOP/s", "FLOP"):
        return f"{value / 1e12:,.4g} T{unit}"
    if unit in ("$", "$/h"):
        return f"{money(value)}{unit[1:]}"
    if unit == "1/s":
        return f"{value:.3g}/s"
    text = format_count(value) if value >= 1e6 else f"{value:,.6g}"
    return f"{text} {unit}".rstrip()
