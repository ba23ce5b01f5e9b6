"""Traffic profiles: the founding mix is as written, every profile is usable, wrong names help."""

import pytest

from model_optimizer.errors import UnknownName
from model_optimizer.kb.traffic import traffic, traffic_profiles


def test_founding_mix_is_the_articles_load():
    profile = traffic("founding-mix")
    assert {c.prompt_tokens: c.weight for c in profile.lengths} == {128: 0.80, 512: 0.15, 2048: 0.05}
    assert profile.output_tokens == 128
    assert [load.concurrency for load in profile.loads] == [1, 10, 50]
    assert profile.seconds_per_load == 180


def test_demo_is_short():
    profile = traffic("demo")
    assert {c.prompt_tokens: c.weight for c in profile.lengths} == {128: 0.80, 256: 0.15, 512: 0.05}
    assert (profile.output_tokens, profile.seconds_per_load, profile.min_requests_per_load) == (64, 30, 8)
    assert [load.concurrency for load in profile.loads] == [1, 4]
    assert profile.longest_sequence == 576


@pytest.mark.parametrize("profile", traffic_profiles(), ids=lambda p: p.id)
def test_profiles_are_usable(profile):
    assert profile.description
    assert sum(c.weight for c in profile.lengths) == pytest.approx(1.0)
    loads = [load.concurrency for load in profile.loads]
    assert loads == sorted(loads)  # the lightest first: the SLO's default load is the first


def test_all_uses_are_there():
    ids = {profile.id for profile in traffic_profiles()}
    assert {"founding-mix", "demo", "chat", "rag", "agent", "summarize", "batch"} <= ids


@pytest.mark.parametrize("spelling", ["founding-mix", "Founding_Mix", " founding mix "])
def test_spelling_does_not_matter(spelling):
    assert traffic(spelling).id == "founding-mix"


def test_unknown_profile_says_what_was_meant():
    with pytest.raises(UnknownName) as caught:
        traffic("summar")
    assert "summarize" in caught.value.fix
    assert caught.value.exit_code == 2
