"""Who wins, how well the simulation agreed, and when a difference is one."""

from __future__ import annotations

import pytest

from model_optimizer.records.tuning import Boundary, PointPrediction, Prediction, Trial, TrialRun
from model_optimizer.records.workload import Load
from model_optimizer.tuning.boundary import Leg, boundary, load_of
from model_optimizer.tuning.decide import agreement, confirm, held, ranked, spearman
from tests.tuning.test_boundary import SLO_, measured, traces


def bound(crossing_per_s: float, n: int = 400) -> tuple[Boundary, Leg]:
    """A leg whose TTFT meets its limit at about this rate, from three loads around it."""
    loads = [crossing_per_s * share for share in (0.8, 1.0, 1.2)]
    found = [measured(load_of(load, "rate"), 0.12 * load / crossing_per_s, n=n) for load in loads]
    points = [p for p, _ in found]
    return boundary(points), Leg([(p.load, t) for p, t in found], SLO_, 0.99)


def trial(number: int, crossing_per_s: float, predicted_per_s: float | None = None) -> Trial:
    predicted = None
    if predicted_per_s is not None:
        predicted = Prediction(load=load_of(predicted_per_s, "rate"), goodput_per_s=predicted_per_s)
    return Trial(
        number=number,
        role="search" if number else "default",
        settings={"n": number} if number else {},
        outcome="measured",
        why="test",
        predicted=predicted,
        run=TrialRun(boundary=bound(crossing_per_s)[0]),
    )


def test_the_winner_holds_the_highest_load_and_a_tie_goes_to_the_earliest() -> None:
    trials = [trial(0, 10.0), trial(1, 14.0), trial(2, 12.0)]
    assert [t.number for t in ranked(trials)] == [1, 2, 0]
    same = [trial(0, 10.0), trial(1, 10.0)]
    assert ranked(same)[0].number == 0


def test_nothing_kept_or_nothing_measured_does_not_win() -> None:
    nothing = Trial(number=1, role="search", settings={}, outcome="measured", why="", run=TrialRun(boundary=Boundary()))
    failed = Trial(number=2, role="search", settings={}, outcome="failed", why="", run=TrialRun())
    assert ranked([nothing, failed]) == []
    assert held(None) == 0.0


def test_a_boundary_that_nothing_broke_counts_with_its_heaviest_load() -> None:
    assert held(Boundary(kept=Load(rate_per_s=7.0))) == 7.0


def test_a_real_difference_is_confirmed_with_an_interval_that_holds_the_ratio() -> None:
    a, b = [bound(10.0), bound(10.3)], [bound(15.0), bound(15.4)]
    found = confirm("ABBA", [x for x, _ in a], [x for x, _ in b], [x for _, x in a], [x for _, x in b], {})
    assert found.verdict == "better"
    assert found.ratio is not None and found.ratio_ci95 is not None
    assert found.ratio_ci95[0] < 1.5 < found.ratio_ci95[1]
    assert found.ratio == pytest.approx(1.5, rel=0.06)


def test_a_worse_winner_is_called_worse() -> None:
    a, b = bound(15.0), bound(10.0)
    assert confirm("AB", [a[0]], [b[0]], [a[1]], [b[1]], {}).verdict == "worse"


def test_noise_is_no_difference() -> None:
    a, b = [bound(10.0), bound(10.6)], [bound(10.5), bound(10.1)]
    found = confirm("ABBA", [x for x, _ in a], [x for x, _ in b], [x for _, x in a], [x for _, x in b], {})
    assert found.verdict == "no difference"


def test_a_default_that_keeps_nothing_is_beaten_without_a_ratio() -> None:
    b = bound(10.0)
    found = confirm("AB", [Boundary(broken=Load(rate_per_s=0.02))], [b[0]], [], [b[1]], {})
    assert found.verdict == "better" and found.ratio is None


def test_without_a_boundary_there_is_not_enough_evidence() -> None:
    open_ended = Boundary(kept=Load(rate_per_s=9.0))
    leg = Leg([(Load(rate_per_s=9.0), traces(0.01))], SLO_, 0.99)
    found = confirm("AB", [open_ended], [open_ended], [leg], [leg], {})
    assert found.verdict == "not enough evidence"


def test_agreement_counts_errors_ranks_and_false_passes() -> None:
    wrong = trial(3, 8.0, 16.0)
    points = wrong.boundary.points if wrong.boundary is not None else ()
    said = tuple(PointPrediction(load=p.load, kept=True, ttft_p99_s=0.1) for p in points)
    wrong = wrong.model_copy(update={"predicted_points": said})
    found = agreement([trial(0, 10.0, 99.0), trial(1, 10.0, 10.5), trial(2, 14.0, 13.0), wrong, trial(4, 9.0)])
    assert found is not None and found.num_trials == 3  # without the default, and what was not predicted
    assert found.goodput_error_p50 is not None and 0.0 < found.goodput_error_p50 < 0.2
    assert found.rank == pytest.approx(-0.5)  # ranks 1 2 0 against 0 1 2
    assert found.num_passes == 3 and found.false_passes == sum(not p.kept for p in points) > 0
    assert found.ttft_p99_error_p50 is not None and found.ttft_p99_error_p50 > 0.3
    assert agreement([trial(0, 10.0)]) is None


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2, 2, 4], [1, 3, 3, 9]) == pytest.approx(1.0)
