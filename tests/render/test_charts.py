from __future__ import annotations

import json
import math

import pytest

from model_optimizer.records.workload import SLO
from model_optimizer.render.candidate_charts import frontier
from model_optimizer.render.chart import Chart, finite, limit_words
from model_optimizer.render.charts import charts
from model_optimizer.render.series import all_series, baseline_of, best, lightest_common
from tests.render import manifests


def drawn(manifest) -> dict[str, Chart]:
    return {chart.id: chart for chart in charts(manifest, all_series(manifest))}


def test_the_winner_comes_first_and_the_baseline_last():
    series = all_series(manifests.finished())
    assert [s.role for s in series] == ["winner", "other", "other", "other", "other", "baseline"]
    assert best(series) is series[0]
    assert baseline_of(series) is series[-1]
    assert series[0].estimate is not None and series[0].estimate.memory_bytes == 390 * 2**20


def test_candidates_not_yet_tried_are_listed_as_waiting():
    states = [s.state for s in all_series(manifests.running())]
    assert states == ["misses_slo", "waiting", "waiting", "waiting", "waiting", "baseline"]


def test_equal_labels_are_told_apart():
    names = [s.name for s in all_series(manifests.without_accuracy())]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("q8_0 · llama.cpp ") for name in names) == 2


def test_the_lightest_common_load_is_found():
    series = all_series(manifests.finished())
    assert str(lightest_common(series[0], series[-1])) == "c=1"


def test_latency_points_are_p50_and_p99_in_the_unit_of_the_axis():
    manifest = manifests.finished()
    chart = drawn(manifest)["latency-tpot"]
    measured = manifest.verdicts[0].measurement
    assert measured is not None
    first = measured.loads[0].tpot_s
    assert first is not None
    assert chart.kind == "curves" and chart.data["unit"] == "ms"
    point = chart.data["groups"][0]["series"][0]["points"][0]
    assert point["lo"] == pytest.approx(first.p50 * 1e3) and point["hi"] == pytest.approx(first.p99 * 1e3)
    assert "measured, n = 120" in point["tip"]
    assert chart.data["limits"] == [{"value": 40.0, "label": "p95 at most 40 ms (asked at c=1)", "at_least": False}]


def test_users_and_arrivals_are_never_on_one_axis():
    groups = drawn(manifests.with_rates())["latency-ttft"].data["groups"]
    assert [(g["label"], g["loads"]) for g in groups] == [
        ("users at once", ["1", "2"]),
        ("requests arriving a second", ["0.5", "4"]),
    ]


def test_one_load_gives_rows_instead_of_curves():
    chart = drawn(manifests.one_load())["latency-ttft"]
    assert chart.kind == "rows"
    assert [panel["title"] for panel in chart.data["panels"]] == ["one user"]
    assert len(chart.data["panels"][0]["rows"]) == 5


def test_an_axis_is_logarithmic_only_where_the_winner_or_a_limit_would_vanish():
    plain = drawn(manifests.finished())
    assert not plain["latency-ttft"].data["log"]  # all within a factor of two
    assert plain["latency-tpot"].data["log"]  # the slowest is six times the winner
    assert drawn(manifests.many_loads())["latency-ttft"].data["log"]  # limit 1.5 s, slowest over 200 s


def test_memory_shows_measured_and_predicted():
    panel = drawn(manifests.finished())["memory"].data["panels"][0]
    winner, failed = panel["rows"][0], panel["rows"][4]
    assert panel["unit"] == "GiB"
    assert winner["value"] == pytest.approx(414 / 1024) and winner["mark"] == pytest.approx(390 / 1024)
    assert failed["value"] is None and failed["text"] == "2.1 GiB predicted"


def test_quality_panels_carry_the_limits_of_the_request():
    panels = drawn(manifests.finished())["quality"].data["panels"]
    assert [panel["limits"][0]["label"] for panel in panels] == ["at most 5 %", "at most 0.1", "at least 85 %"]
    q4 = panels[0]["rows"][1]
    assert q4["value"] == pytest.approx(3.89) and q4["lo"] < q4["value"] < q4["hi"]


def test_a_lower_bound_of_kl_says_so():
    rows = drawn(manifests.doubtful())["quality"].data["panels"][1]["rows"]
    assert rows[0]["text"].startswith("≥ ")


def test_the_frontier_holds_those_that_nothing_beats_in_both():
    dots = [{"id": i, "x": x, "y": y} for i, (x, y) in enumerate([(1, 0.0), (5, 1.0), (4, 2.0), (9, 3.0), (5, 1.5)])]
    assert [d["id"] for d in frontier(dots, more_is_better=True)] == [0, 1, 3]
    assert [d["id"] for d in frontier(dots, more_is_better=False)] == [0]


def test_a_step_looked_up_after_it_was_run_is_drawn_once():
    manifest = manifests.finished()
    again = [r.model_copy(update={"status": "remembered", "seconds": 0.0}) for r in manifest.stages]
    chart = drawn(manifest.model_copy(update={"stages": (*manifest.stages, *again)}))["time"]
    parts = [part for row in chart.data["rows"] for part in row["parts"]]
    assert len(parts) == len(manifest.stages)
    assert [p["status"] for p in parts].count("run") == len(manifest.stages) - 2
    assert len(chart.table.rows) == 2 * len(manifest.stages)


def test_what_was_not_measured_is_said_instead_of_drawn():
    absent = {id: chart.absent for id, chart in drawn(manifests.just_started()).items()}
    assert all(absent.values())
    assert drawn(manifests.without_accuracy())["quality"].absent == "Validation was switched off in the request."


@pytest.mark.parametrize("make", manifests.ALL, ids=lambda make: make.__name__)
def test_every_picture_has_a_table_as_wide_as_its_head_and_data_that_json_can_hold(make):
    for chart in drawn(make()).values():
        assert bool(chart.absent) != bool(chart.data)
        assert all(len(row) == len(chart.table.head) for row in chart.table.rows)
        assert bool(chart.table.rows) == bool(chart.data)
        json.dumps(finite(chart.data), allow_nan=False)


def test_nan_becomes_null():
    assert finite({"a": [math.nan, 1.0, (math.inf,)], "b": "NaN"}) == {"a": [None, 1.0, [None]], "b": "NaN"}


def test_limits_in_words():
    slo = SLO.model_validate(
        {
            "ttft_p99": "1500 ms",
            "error_rate": "0.1 %",
            "peak_memory": "1 GiB",
            "output_tokens_per_s": 40,
            "request_rate": "4/s",
        }
    )
    assert [limit_words(limit) for limit in slo.limits] == [
        "p99 at most 1.5 s",
        "at most 0.1 %",
        "at most 1 GiB",
        "at least 40 tokens/s",
        "at least 4 requests/s",
    ]


def test_pictures_say_what_they_show_about_the_winner():
    says = {id: chart.says for id, chart in drawn(manifests.finished()).items()}
    assert says["latency-ttft"] == "q8_0 · llama.cpp keeps TTFT p99 at most 1.5 s up to 2 users at once."
    assert says["throughput"] == "q8_0 · llama.cpp reaches 97.3 tokens/s with 8 users at once."
    assert says["memory"] == "q8_0 · llama.cpp peaks at 414 MiB, 6\u00a0% more than predicted."
    assert says["quality"].startswith(
        "q8_0 · llama.cpp: perplexity unchanged within the noise, the same most likely token"
    )


def test_a_picture_says_where_a_limit_is_never_or_always_kept():
    assert drawn(manifests.nothing_met())["latency-ttft"].says.endswith(
        "keeps TTFT p99 at most 300 ms at no load measured."
    )
    assert drawn(manifests.one_load())["latency-ttft"].says.endswith("at every load measured, up to one user.")
    without_limits = drawn(manifests.without_accuracy())["latency-ttft"].says
    assert without_limits.endswith(": TTFT p99 578 ms for one user, 3.87 s for 8 users at once.")
