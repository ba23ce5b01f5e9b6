"""Prompts: length, mixture, uniqueness, determinism."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter

import pytest

from model_optimizer.loadgen.prompts import Prompt, PromptSource, WordFit, yardstick
from model_optimizer.records.workload import TrafficProfile

FOUNDING = {128: 0.80, 512: 0.15, 2048: 0.05}


def profile(mix: dict[int, float], **more) -> TrafficProfile:
    return TrafficProfile.model_validate({"prompt_tokens": mix} | more)


def draw(n: int, traffic: TrafficProfile, name: str = "0/window", salt: str = "") -> list[Prompt]:
    return list(itertools.islice(PromptSource(traffic, WordFit(), salt=salt).stream(name), n))


def beginning(prompt: Prompt, words: int = 4) -> str:
    return " ".join(prompt.text.split()[:words])


@pytest.mark.parametrize("n", [20, 40, 60, 200])
def test_short_runs_hold_the_mix_exactly(n) -> None:
    counts = Counter(prompt.target_prompt_tokens for prompt in draw(n, profile(FOUNDING)))
    assert counts == {length: round(share * n) for length, share in FOUNDING.items()}


def test_any_prefix_of_an_odd_mix_is_close() -> None:
    mix = {100: 1.0, 200: 1.0, 300: 1.0}
    seen: Counter[int] = Counter()
    for number, prompt in enumerate(draw(300, profile(mix)), 1):
        seen[prompt.target_prompt_tokens] += 1
        if number % 20 == 0:
            assert all(abs(seen[length] - number / 3) <= 1 for length in mix)


def test_the_order_is_not_a_pattern() -> None:
    order = [prompt.target_prompt_tokens for prompt in draw(400, profile(FOUNDING))]
    places = [tuple(at for at in range(20) if order[block + at] == 512) for block in range(0, 400, 20)]
    assert len(set(places)) > 10


def test_no_two_prompts_begin_alike() -> None:
    traffic = profile({64: 1.0})
    drawn = [prompt for name in ("0/warm-up", "0/window", "1/window") for prompt in draw(1500, traffic, name)]
    assert len({beginning(prompt) for prompt in drawn}) == len(drawn)


def test_prompts_depend_on_seed_and_salt() -> None:
    traffic = profile({64: 1.0})
    assert draw(30, traffic) == draw(30, traffic)
    assert draw(30, profile({64: 1.0}, seed=1))[0].text != draw(30, traffic)[0].text
    salted = draw(30, traffic, salt="another run")
    for plain, other in zip(draw(30, traffic), salted, strict=True):
        assert beginning(plain) != beginning(other)
        assert plain.text.split()[4:] == other.text.split()[4:]


def test_a_prompt_has_as_many_words_as_the_fit_says() -> None:
    fit = WordFit(overhead_tokens=30, tokens_per_word=1.5)
    (prompt,) = itertools.islice(PromptSource(profile({330: 1.0}), fit).stream("x"), 1)
    assert len(prompt.text.split()) == 200
    assert fit.num_words(1) == 1


def test_prompts_look_like_text() -> None:
    (prompt,) = draw(1, profile({128: 1.0}))
    sentences = prompt.text.split(". ")
    assert prompt.text.endswith(".") and len(sentences) > 5
    assert all(sentence[0].isupper() for sentence in sentences)
    assert 6 <= statistics.median(len(sentence.split()) for sentence in sentences) <= 14


def test_output_tokens_of_a_class_win() -> None:
    lengths = [{"prompt_tokens": 10, "weight": 1, "output_tokens": 7}, {"prompt_tokens": 20, "weight": 1}]
    traffic = TrafficProfile.model_validate({"lengths": lengths, "output_tokens": 99})
    assert {(prompt.target_prompt_tokens, prompt.max_tokens) for prompt in draw(20, traffic)} == {(10, 7), (20, 99)}


def test_yardsticks_of_neighbouring_parts_make_the_whole() -> None:
    count, whole = yardstick(0, 10_000)
    assert count == len(whole.split()) == len({word.strip(".").lower() for word in whole.split()})
    parts = [yardstick(at, at + 32)[1].lower().replace(".", "").split() for at in (0, 32)]
    assert parts[0] + parts[1] == whole.lower().replace(".", "").split()[:64]
