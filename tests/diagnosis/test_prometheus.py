"""The text format, as it is and as it comes; and differences of two pages."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_optimizer.diagnosis.prometheus import Page, latency, rise, total, went_back

TEXT = r"""# HELP x_seconds How long.
# TYPE x_seconds histogram
x_seconds_bucket{le="0.1"} 3
x_seconds_bucket{le="1.0"} 9.0 1712000000000
x_seconds_bucket{le="+Inf"} 10.0
x_seconds_sum 4.5e+00
x_seconds_count 10.0
requests_total{path="/a \"b\", {c}\\",code="200",} 7 # {trace_id="a"} 1.0

plain NaN
broken{ 1
also broken
name{a="b"} not-a-number
"""


def test_labels_escapes_timestamps_and_broken_lines():
    page = Page(TEXT)
    assert page.samples["requests_total"] == {frozenset({("path", '/a "b", {c}\\'), ("code", "200")}): 7.0}
    assert page.samples["x_seconds_bucket"][frozenset({("le", "1.0")})] == 9.0
    assert page.num_bad == 3
    assert math.isnan(page.samples["plain"][frozenset()])
    assert total(page.series("plain")) is None


def test_counters_are_found_with_and_without_their_suffix():
    page = Page('a_total 1\nb 2\nc_total{mode="x"} 3\nc_total{mode="y"} 4\nc_total{mode="z"} 5\n')
    assert [total(page.series(name)) for name in ("a", "a_total", "b", "b_total")] == [1, 1, 2, 2]
    assert total(page.series("c{mode=x|z}")) == 8
    assert total(page.series("missing")) is None
    assert page.label("c_total", "mode") in ("x", "y", "z")


def test_repeated_ranks_count_once_and_others_are_summed():
    page = Page('r{dp="0",tp="0"} 3\nr{dp="0",tp="1"} 3\nr{dp="1",tp="0"} 4\nr{dp="1",tp="1"} 4\n')
    assert total(page.series("r"), ("tp",)) == 7
    assert total(page.series("r")) == 14


def test_a_series_that_is_new_began_at_zero_and_a_lower_one_is_a_restart():
    before, after = Page('n_total{r="a"} 5\n'), Page('n_total{r="a"} 6\nn_total{r="b"} 2\n')
    assert rise(before, after, "n") == 3
    assert not went_back(before, after, ("n",))
    assert went_back(after, before.__class__('n_total{r="a"} 0\n'), ("n",))
    assert went_back(before, Page("m 1\n"), ("n",))  # a new process counts only what has happened


def histogram(values: list[float], bounds: tuple[float, ...]) -> str:
    lines = [f'h_bucket{{le="{b}"}} {sum(v <= b for v in values)}' for b in bounds]
    lines += [f'h_bucket{{le="+Inf"}} {len(values)}', f"h_sum {sum(values)!r}", f"h_count {len(values)}"]
    return "\n".join(lines)


BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5)


@given(
    old=st.lists(st.floats(0.001, 9.0), max_size=30),
    new=st.lists(st.floats(0.001, 9.0), min_size=1, max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_quantiles_of_the_window_lie_in_the_bucket_of_the_true_ones(old, new):
    seen = latency(Page(histogram(old, BOUNDS)), Page(histogram(old + new, BOUNDS)), "h")
    assert seen is not None
    assert seen.count == len(new)
    assert seen.mean == pytest.approx(sum(new) / len(new), rel=1e-6, abs=1e-6)
    for quantile, share in ((seen.p50, 0.5), (seen.p90, 0.9), (seen.p99, 0.99)):
        true = sorted(new)[max(0, math.ceil(share * len(new)) - 1)]
        assert quantile.low <= true
        assert quantile.high is None or true <= quantile.high
        assert quantile.low <= quantile.value <= (quantile.high or math.inf)


def test_nothing_observed_gives_no_latency():
    page = Page(histogram([0.2], BOUNDS))
    assert latency(page, page, "h") is None
    assert latency(page, page, "absent") is None


@pytest.mark.parametrize(
    "text", ["", "\n\n", "<html>", "{}", "\x00" * 1000, "# only comments\n", "=" * 10_000, "{" * 5000]
)
def test_what_is_no_page_has_no_samples(text):
    assert not Page(text)
