"""Prices carry their date; the user's own come first."""

from statistics import median

import pytest

from model_optimizer.errors import SpecInvalid, UnknownName
from model_optimizer.kb.gpus import gpus
from model_optimizer.kb.prices import electricity, prices, usd_per_hour


def test_shipped_prices_are_dated_and_only_hint():
    everything = [price for spec in gpus() for price in prices(spec.id)]
    assert len(everything) >= 40
    for price in everything:
        assert price.status == "community" and price.source is not None
        assert "2026-05-01" <= price.date <= "2026-12-01"
        assert 0.05 <= price.usd_per_hour <= 20
    assert len({price.gpu for price in everything}) >= 20


def test_the_middle_of_what_providers_ask():
    asked = [price.usd_per_hour for price in prices("h100 sxm") if price.tier == "on-demand"]
    found = usd_per_hour("h100 sxm")
    assert found is not None and found.value == median(asked)
    assert f"median of {len(asked)} offers" in found.note and "2026-11-09" in found.note
    assert not found.may_refuse


def test_no_price_is_no_price():
    assert prices("4060 laptop") == ()
    assert usd_per_hour("4060 laptop") is None


def test_serverless_only_where_nothing_else_is_known():
    found = usd_per_hour("l40s")
    assert found is not None and found.value == 1.9512


def test_own_prices_come_first(tmp_path):
    own = tmp_path / "prices.yaml"
    own.write_text(
        "prices:\n  - {gpu: 4060 laptop, usd_per_hour: 0.05, note: my desk}\n  - {gpu: h100 sxm, usd_per_hour: 1.5}\n"
        "electricity: {usd_per_kwh: 0.31, pue: 1.4}\n"
    )
    mine = prices("h100-sxm", own)[0]
    assert (mine.usd_per_hour, mine.tier, mine.provider) == (1.5, "own", "yours")
    for name, expected in (("h100-sxm", 1.5), ("4060 laptop", 0.05)):
        found = usd_per_hour(name, own)
        assert found is not None and found.value == expected
    assert (electricity(own).usd_per_kwh, electricity(own).pue) == (0.31, 1.4)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("prices:\n  - {gpu: h100-sxm, usd_per_hour: -1}\n", SpecInvalid, ":2:"),
        ("prices:\n  - {gpu: h100-sxm}\n", SpecInvalid, "usd_per_hour"),
        ("prices:\n  - {gpu: h100-sxm, usd_per_hour: 1, source: nowhere}\n", SpecInvalid, "not declared"),
        ("price: []\n", SpecInvalid, "price"),
        ("prices: {\n", SpecInvalid, "YAML"),
    ],
)
def test_mistakes_in_the_own_file(tmp_path, text, error, words):
    own = tmp_path / "prices.yaml"
    own.write_text(text)
    with pytest.raises(error) as caught:
        prices("h100-sxm", own)
    assert words in " ".join((caught.value.what, caught.value.cause, *caught.value.evidence))


def test_unknown_gpu_in_the_own_file(tmp_path):
    own = tmp_path / "prices.yaml"
    own.write_text("prices:\n  - {gpu: rtx 4091, usd_per_hour: 1}\n")
    with pytest.raises(UnknownName, match="4091"):
        prices("h100-sxm", own)


def test_electricity_has_a_default_with_a_source():
    shipped = electricity()
    assert shipped.source is not None and shipped.date and shipped.region
    assert 0.05 <= shipped.usd_per_kwh <= 0.5
