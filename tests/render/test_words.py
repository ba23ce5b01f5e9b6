from __future__ import annotations

import math

import pytest

from model_optimizer.records.workload import Load
from model_optimizer.render import words


@pytest.mark.parametrize(
    ("value", "text"),
    [(36.44, "36.4"), (30.0, "30.0"), (5.5, "5.50"), (2337.4, "2,337"), (99.97, "100"), (0.0009, "0.0009"), (0.0, "0")],
)
def test_numbers_have_three_significant_digits(value, text):
    assert words.number(value) == text


def test_unknown_is_a_dash_and_nan_is_said():
    assert words.number(None) == words.seconds(None) == words.size(None) == words.share(None) == "–"
    assert words.number(math.nan) == words.signed_share(math.inf) == words.perplexity(math.nan) == "not finite"


@pytest.mark.parametrize(("value", "text"), [(0.0042, "+0.42\u00a0%"), (-0.012, "−1.20\u00a0%"), (0.0, "0\u00a0%")])
def test_signed_shares(value, text):
    assert words.signed_share(value) == text


@pytest.mark.parametrize(
    ("new", "old", "text"),
    [
        (414, 994, "58\u00a0% less"),
        (112, 100, "12\u00a0% more"),
        (101, 100, "the same"),
        (250, 100, "2.5 times"),
        (1, 0, None),
    ],
)
def test_changes(new, old, text):
    assert words.change(new, old) == text


@pytest.mark.parametrize(("new", "old", "text"), [(38.3, 6.93, "5.5"), (120, 10, "12"), (9.96, 1, "10"), (1, 0, None)])
def test_times(new, old, text):
    assert words.times(new, old) == text


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (Load(concurrency=1), "one user"),
        (Load(concurrency=8), "8 users at once"),
        (Load(rate_per_s=1.0), "1 request a second"),
        (Load(rate_per_s=0.5), "0.5 requests a second"),
    ],
)
def test_loads(load, text):
    assert words.load(load) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-12-01T09:30:00+00:00", "2026-12-01 09:30 UTC"),
        ("2026-12-01T09:30:00+08:00", "2026-12-01 09:30 +0800"),
        ("2026-12-01T09:30:00", "2026-12-01 09:30"),
        ("yesterday", "yesterday"),
    ],
)
def test_moments(value, text):
    assert words.moment(value) == text


def test_flattened_keeps_plain_lists_in_one_piece():
    value = {"a": {"b": [1, 2], "c": [{"d": 1}]}, "e": {}}
    assert list(words.flattened(value)) == [("a.b", [1, 2]), ("a.c[0].d", 1), ("e", {})]
