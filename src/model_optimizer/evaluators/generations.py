"""Answers to packaged prompts: is one of them broken, and where does a candidate leave the reference?

Text is counted in *words*: a CJK character counts as one, any other run of letters or digits as one. The client does
not know the tokens.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from importlib.resources import files
from statistics import fmean
from typing import NamedTuple

from model_optimizer.records.measurement import Generation

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_SENTENCE_END = tuple(".!?…:;。！？；：”’\"'`)]}）」』】*")

# Markers of chat templates. In an answer they mean that the engine does not know them as special, or ran past the end.
_TEMPLATE_TOKEN = re.compile(
    r"<\|[\w ]{2,40}\|>|<\uff5c[^\uff5c<>]{2,40}\uff5c>|</?s>|<(?:start|end)_of_turn>|<(?:eos|bos|pad|unk)>"
    r"|\[/?INST\]|<0x[0-9A-F]{2}>"
)

# A stretch that repeats is a loop when it comes this often, by its length in words. Short ones are common in good text
# ("very, very", "1, 1, 2", refrains), so they must come more often. Samples: tests/evaluators/test_generations.py.
_LOOP_TIMES = {1: 8, 2: 5, 3: 4}
_LOOP_TIMES_LONG = 3
_LOOP_LONGEST = 40
_LOOP_MIN_WORDS = 8
_SAME_CHARACTER = re.compile(r"([^\s\-=_*#.~─|+])\1{19,}")
_DISTINCT_WORDS_AT_LEAST = 40
_DISTINCT_SHARE = 0.4  # of word triples; ordinary text is above 0.8, lists of similar lines above 0.5
_CARRIES_ON_WORDS = 4
_CUT_SHORT_WORDS = 4


def _read_prompts() -> tuple[str, ...]:
    text = (files("model_optimizer.evaluators") / "data" / "prompts.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line)["prompt"] for line in text.splitlines() if line.strip())


PROMPTS: tuple[str, ...] = _read_prompts()
"""The packaged requests that every served model answers."""


class Divergence(NamedTuple):
    """Where two answers to one prompt part.

    ``words``: how many words they share from the start (all, where they are ``identical``). ``problem``: what is wrong
    with the candidate's end, seen against the reference's; ``None`` where nothing is.
    """

    words: int
    identical: bool
    problem: str | None


def words(text: str) -> list[str]:
    """The words of a text, CJK characters one by one; punctuation is left out."""
    return _WORD.findall(text)


def problem(text: str, finish_reason: str | None = None) -> str | None:
    """What makes this answer unusable, or ``None``: empty, chat-template markers in it, garbage characters, a loop.

    ``finish_reason`` ``"length"`` allows a broken last character: the limit may fall inside one.
    """
    if not text.strip():
        return "empty"
    marker = _TEMPLATE_TOKEN.search(text)
    if marker:
        return f"the chat template's {marker[0]} is part of the answer"
    return _garbage(text, finish_reason) or _loop(text)


def compare(reference: Generation, candidate: Generation) -> Divergence:
    """First difference of two answers, and whether the candidate missed the end or stopped in the middle."""
    ours, theirs = words(candidate.text), words(reference.text)
    shared = 0
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            break
        shared += 1
    trouble = None
    if reference.finish_reason == "stop" and candidate.finish_reason == "length" and theirs:
        if shared == len(theirs) and len(ours) >= shared + _CARRIES_ON_WORDS:
            trouble = "does not stop where the reference does"
    elif candidate.finish_reason == "stop" and ours and shared == len(ours):
        mid_sentence = not candidate.text.rstrip().endswith(_SENTENCE_END)
        if mid_sentence and len(theirs) >= shared + _CUT_SHORT_WORDS:
            trouble = "stops in the middle of the reference's answer"
    return Divergence(shared, candidate.text == reference.text, trouble)


def checked(answers: Sequence[Generation], reference: Sequence[Generation] = ()) -> tuple[Generation, ...]:
    """The answers with ``problem`` filled in; where the reference answered the same prompt, its end is compared too."""
    by_prompt = {answer.prompt: answer for answer in reference}
    found = []
    for answer in answers:
        trouble = problem(answer.text, answer.finish_reason)
        if trouble is None and answer.prompt in by_prompt:
            trouble = compare(by_prompt[answer.prompt], answer).problem
        found.append(answer.model_copy(update={"problem": trouble}))
    return tuple(found)


def first_divergence_mean(answers: Sequence[Generation], reference: Sequence[Generation]) -> float | None:
    """Mean number of words that candidate and reference share from the start; ``None`` without common prompts."""
    by_prompt = {answer.prompt: answer for answer in reference}
    shared = [compare(by_prompt[a.prompt], a).words for a in answers if a.prompt in by_prompt]
    return fmean(shared) if shared else None


def _garbage(text: str, finish_reason: str | None) -> str | None:
    body = text.rstrip("\ufffd") if finish_reason == "length" else text
    for char in body:
        kind = unicodedata.category(char)
        if char == "\ufffd" or kind in ("Cn", "Co", "Cs") or (kind == "Cc" and char not in "\n\r\t"):
            return f"characters that are no text (U+{ord(char):04X})"
    return None


def _loop(text: str) -> str | None:
    same = _SAME_CHARACTER.search(text)
    if same:
        return f"repeats {same[1]!r} without end"
    found = words(text.lower())
    for period in range(1, min(_LOOP_LONGEST, len(found) // 3) + 1):
        matching = 0
        for i in range(period, len(found)):
            matching = matching + 1 if found[i] == found[i - period] else 0
            times = matching // period + 1
            if times >= _LOOP_TIMES.get(period, _LOOP_TIMES_LONG) and matching + period >= _LOOP_MIN_WORDS:
                return f"repeats “{_shown(found[i - period + 1 : i + 1])}”"
    if len(found) >= _DISTINCT_WORDS_AT_LEAST:
        triples = list(zip(found, found[1:], found[2:], strict=False))
        if len(set(triples)) / len(triples) < _DISTINCT_SHARE:
            return "says the same few phrases over and over"
    return None


def _shown(found: Sequence[str]) -> str:
    joined = "".join(word if re.match(rf"[{_CJK}]", word) else f" {word} " for word in found)
    text = " ".join(joined.split())
    return text if len(text) <= 40 else text[:39] + "…"
