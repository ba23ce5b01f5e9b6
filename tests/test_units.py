from __future__ import annotations

import pytest

from model_optimizer import units


@pytest.mark.parametrize(
    ("text", "value"),
    [("24 GiB", 24 * 2**30), ("24 GB", 24 * 10**9), ("24GB", 24 * 10**9), ("1.5 MiB", 3 * 2**19), ("7 B", 7), (5, 5)],
)
def test_bytes(text: object, value: int):
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("150 ms", 0.15), ("2s", 2.0), ("3 min", 180.0), ("1.5 h", 5400.0), ("250us", 0.00025), (0.1, 0.1)],
)
def test_seconds(text: object, value: float):
    assert units.parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("4/s", 4.0), ("90/min", 1.5), ("2 rps", 2.0), (3, 3.0)])
def test_rates(text: object, value: float):
    assert units.parse_per_second(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("0.1 %", 0.001), ("5%", 0.05), (0.2, 0.2), ("0.2", 0.2)])
def test_shares(text: object, value: float):
    assert units.parse_share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["24", "24 G", "a lot", "", None, True])
def test_a_size_needs_a_unit(text: object):
    with pytest.raises(ValueError, match=r"unit|is not a"):
        units.parse_bytes(text)


def test_formatting():
    assert units.format_bytes(1.5 * 2**30) == "1.5 GiB"
    assert units.format_bytes(1010 * 2**20) == "1010 MiB"
    assert units.format_seconds(0.0413) == "41.3 ms"
    assert units.format_seconds(245) == "4 min 05 s"
    assert units.format_seconds(3725) == "1 h 02 min"
    assert units.format_count(134_515_008) == "135 M"
    assert units.format_share(0.0123) == "1.23 %"
