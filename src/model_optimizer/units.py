"""Units: people write ``24 GiB``, ``150 ms``, ``4/s``, ``0.1 %``; records hold bytes, seconds, per second, shares.

GB and GiB differ by 7 %, so a bare number is refused where the unit matters.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*(.*?)\s*$", re.IGNORECASE)

_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PER_SECOND = {"/s": 1.0, "per s": 1.0, "rps": 1.0, "qps": 1.0, "/min": 1 / 60, "/h": 1 / 3600}


def _split(value: object, kind: str, table: dict[str, float] | dict[str, int], example: str) -> tuple[float, float]:
    match = _NUMBER.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a {kind}; write for example {example}")
    unit = match[2].lower()
    if unit not in table:
        raise ValueError(
            f"{value!r}: {'no unit' if not unit else f'unknown unit {match[2]!r}'}; use {', '.join(table)}"
        )
    return float(match[1]), float(table[unit])


def parse_bytes(value: Any) -> int:
    """``"24 GiB"`` → bytes. An int is taken as bytes already."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number, factor = _split(value, "size", _BYTES, "24 GiB")
    return round(number * factor)


def parse_seconds(value: Any) -> float:
    """``"150 ms"`` → seconds. A number is taken as seconds already."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    number, factor = _split(value, "duration", _SECONDS, "150 ms")
    return number * factor


def parse_per_second(value: Any) -> float:
    """``"4/s"`` → per second. A number is taken as per second already."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    number, factor = _split(value, "rate", _PER_SECOND, "4/s")
    return number * factor


def parse_share(value: Any) -> float:
    """``"0.1 %"`` → 0.001. A number is taken as a share already."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = str(value).strip()
    number, factor = _split(text, "share", {"%": 0.01, "": 1.0}, "0.1 %")
    return number * factor


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
PerSecond = Annotated[float, BeforeValidator(parse_per_second)]
Share = Annotated[float, BeforeValidator(parse_share)]


def format_bytes(value: float) -> str:
    """Bytes for people, in binary units: ``1.25 GiB``."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}" if value / factor < 1000 else f"{value / factor:.0f} {unit}"
    return f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """Seconds for people: ``41 ms``, ``2.3 s``, ``4 min 05 s``."""
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_count(value: float) -> str:
    """Counts for people: ``135 M``, ``8.03 B``."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g}"


def format_share(value: float) -> str:
    """A share as percent: ``1.2 %``."""
    return f"{value * 100:.3g} %"
