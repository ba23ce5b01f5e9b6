"""Numbers as facts are written: always with a unit (``256 GB/s``, ``8 GiB``, ``23.2 T``), never bare."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator

from model_optimizer.units import parse_bytes

_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]+)\s*$")

_BYTES_PER_SECOND = {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
_HERTZ = {"MHz": 1e6, "GHz": 1e9}
_WATTS = {"W": 1.0, "kW": 1e3}
_PER_SECOND_PEAK = {"G": 1e9, "T": 1e12, "P": 1e15}


def _with_unit(units: dict[str, float], example: str) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        match = _NUMBER.match(value) if isinstance(value, str) else None
        if match is None or match[2] not in units:
            raise ValueError(f"{value!r}: write a number and one of {', '.join(units)}, for example {example}")
        return float(match[1]) * units[match[2]]

    return parse


def _written_bytes(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; GB and GiB differ by 7 %: write for example 24 GiB")
    return parse_bytes(value)


WrittenBytes = Annotated[int, BeforeValidator(_written_bytes)]
BytesPerSecond = Annotated[float, BeforeValidator(_with_unit(_BYTES_PER_SECOND, "256 GB/s"))]
Hertz = Annotated[float, BeforeValidator(_with_unit(_HERTZ, "1890 MHz"))]
Watts = Annotated[float, BeforeValidator(_with_unit(_WATTS, "115 W"))]
Flops = Annotated[float, BeforeValidator(_with_unit(_PER_SECOND_PEAK, "23.2 T"))]
