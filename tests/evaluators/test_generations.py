"""Broken answers are found, and good ones, odd as they may look, are left alone."""

from __future__ import annotations

import pytest

from model_optimizer.evaluators.generations import (
    PROMPTS,
    checked,
    compare,
    first_divergence_mean,
    problem,
    words,
)
from model_optimizer.evaluators.logits import evaluation_blocks
from model_optimizer.records.measurement import Generation

GOOD = [
    "Paris.",
    "Yes",
    "7",
    "The capital of France is Paris.",
    "中国的首都是北京。",
    "Very, very, very good! Ha ha ha, that was a joke.",
    "La la la, la la la, sang the bird, and the cat said no, no, no.",
    "def reverse(text):\n    return text[::-1]\n\nprint(reverse('abc'))",
    "```sql\nSELECT city, COUNT(*) FROM customers GROUP BY city ORDER BY COUNT(*) DESC;\n```",
    '{"name": "Ada", "age": 36, "city": "London"}',
    "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n| 5 | 6 |\n----------------------------------------",
    "1. Oatmeal with berries\n2. Yoghurt with nuts\n3. Eggs with spinach",
    "1. Mercury\n2. Venus\n3. Earth\n4. Mars\n5. Jupiter\n6. Saturn\n7. Uranus\n8. Neptune",
    "x = [0, 0, 0, 0]\ny = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]",
    "十分好，非常非常好。哈哈哈哈！",
    "The sky is blue because air scatters blue light more than red light. Red light passes straight through, and so "
    "the light that reaches us from the side of the sky is mostly blue light.",
    "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream.",
    "x < y and y > z; a </div> closes a <div>; use <s for less than.",
    "🎂 生日快乐！🎉🎉🎉",
    "One quintillion is 1000000000000000000.",
]


@pytest.mark.parametrize("text", GOOD)
def test_good_answers_are_left_alone(text: str):
    assert problem(text, "stop") is None


@pytest.mark.parametrize("text", evaluation_blocks())
def test_good_writing_is_left_alone(text: str):
    """The packaged passages hold lists, tables, verse, code and dialogue: no false alarm on any, whole or cut at 48."""
    assert problem(text, "stop") is None
    assert problem(text[:200], "length") is None


LOOPS = [
    "the the the the the the the the the",
    "The answer is yes. The answer is yes. The answer is yes. The answer is yes.",
    "I am a helpful assistant. I can help you with your questions.\n" * 4,
    "好的，好的，好的，好的，好的，好的，好的，好的",
    "天空是蓝色的，因为天空是蓝色的，因为天空是蓝色的，因为天空是蓝色的",
    "Here is the code:\n" + "    print(i)\n" * 12,
    "1. Apple\n2. Banana\n" + "3. Banana bread\n" * 6,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "没有？－－－－－－－－－－－－－－－－－－－－－",
    "First some good text that means something, and then 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
]


@pytest.mark.parametrize("text", LOOPS)
def test_loops_are_found(text: str):
    found = problem(text, "length")
    assert found is not None and found.startswith("repeats")


def test_a_loop_with_small_changes_is_found():
    numbers = ("one", "two", "one", "three", "two", "one", "two", "three")
    text = " ".join(f"you can use the {number} to do the work and" for number in numbers)
    assert problem(text, "length") == "says the same few phrases over and over"


@pytest.mark.parametrize("text", ["", "   \n\n\t"])
def test_an_empty_answer_is_found(text: str):
    assert problem(text, "stop") == "empty"


@pytest.mark.parametrize(
    "text",
    [
        "Paris.<|im_end|>\n<|im_start|>user\nThanks",
        "Hello</s>",
        "Hi<|eot_id|>",
        "Hi<end_of_turn>",
        "Sure [INST] next",
        "token <0x0A> here",
        "你好<｜end▁of▁sentence｜>",
    ],
)
def test_leaked_template_markers_are_found(text: str):
    found = problem(text, "stop")
    assert found is not None and "chat template" in found


def test_garbage_is_found_but_a_character_cut_by_the_limit_is_not():
    assert problem("abc\ufffd\ufffd def", "length") == "characters that are no text (U+FFFD)"
    assert problem("你好\ufffd", "length") is None
    assert problem("你好\ufffd", "stop") == "characters that are no text (U+FFFD)"
    assert problem("bell\x07", "stop") == "characters that are no text (U+0007)"


def answer(text: str, finish: str = "stop", prompt: str = "p") -> Generation:
    return Generation(prompt=prompt, text=text, output_tokens=len(words(text)), finish_reason=finish)


def test_missing_the_stop_token_is_found():
    reference = answer("The capital is Paris.")
    assert compare(reference, answer("The capital is Paris. The capital of Spain is Madrid", "length")).problem == (
        "does not stop where the reference does"
    )
    assert compare(reference, answer("The capital of France is the city of Paris, on the", "length")).problem is None
    assert compare(reference, answer("The capital is Paris. It is old.", "stop")).problem is None


def test_stopping_in_mid_sentence_is_found():
    reference = answer("The capital of France is Paris, which lies on the Seine.")
    assert compare(reference, answer("The capital of")).problem == "stops in the middle of the reference's answer"
    assert compare(reference, answer("The capital of", "length")).problem is None
    assert compare(answer("It is Paris. The city is old and large."), answer("It is Paris.")).problem is None


def test_divergence_counts_words_and_characters():
    assert compare(answer("one two three four"), answer("one two 3 four")).words == 2
    assert compare(answer("天空是蓝色的"), answer("天空是红色的")).words == 3
    same = compare(answer("one, two"), answer("one, two"))
    assert (same.words, same.identical) == (2, True)


def test_mean_divergence_is_over_common_prompts():
    reference = [answer("a b c d", prompt="1"), answer("x y", prompt="2")]
    candidate = [answer("a b x", prompt="1"), answer("x y", prompt="2"), answer("?", prompt="3")]
    assert first_divergence_mean(candidate, reference) == 2.0
    assert first_divergence_mean(candidate, ()) is None


def test_problems_are_marked_and_an_answer_equal_to_the_reference_is_never_worse():
    reference = [answer("no no no no no no no no no", prompt="1"), answer("Paris.", prompt="2")]
    assert [g.problem for g in checked(reference, reference)] == [g.problem for g in checked(reference)]
    marked = checked([answer("", prompt="2")], reference)
    assert marked[0].problem == "empty"


def test_the_packaged_prompts():
    assert len(PROMPTS) == 24 == len(set(PROMPTS))
    for start in (0, 6, 12, 18):  # a prefix of any length asks in both languages
        languages = {bool(set("的是一请把") & set(prompt)) for prompt in PROMPTS[start : start + 6]}
        assert languages == {True, False}
