"""The request's tuning section."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from model_optimizer.records.tuning import TuningSpec


@pytest.mark.parametrize("order", ["AB", "ABBA", "ACBBCA"])
def test_an_order_has_the_default_and_the_winner(order: str) -> None:
    assert TuningSpec(order=order).order == order


@pytest.mark.parametrize("order", ["", "AA", "BB", "ABX", "ab"])
def test_other_orders_are_refused(order: str) -> None:
    with pytest.raises(ValidationError, match="A and B at least once"):
        TuningSpec(order=order)


def test_a_request_file_may_write_units() -> None:
    spec = TuningSpec.model_validate({"budget": {"wall": "20 min", "trials": 5}, "seconds_per_load": "15 s"})
    assert spec.budget.wall == 1200 and spec.seconds_per_load == 15 and spec.budget.trials == 5


def test_no_trials_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        TuningSpec.model_validate({"budget": {"trials": 0}})
