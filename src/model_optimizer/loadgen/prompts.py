"""Unique prompts of about the length asked for, on any tokenizer, the same for every candidate.

A server keeps the work of prompts it has seen (prefix caching), so a repeated prompt measures the cache: on one
engine the same prompts again gave 2.3 times the throughput. Here every prompt of a run begins with other words, and
``salt`` makes the beginnings of this run differ from those of the last one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from model_optimizer.records.base import Record
from model_optimizer.records.workload import LengthClass, TrafficProfile

OPENING_WORDS = 4
"""Words at the start that depend on the salt: 700⁴ beginnings, so no two prompts of a run share one."""

MIX_BLOCK = 20
"""Requests within which the length classes have their shares, as exactly as whole numbers allow."""


class Prompt(NamedTuple):
    """One request's text and what it asks for."""

    text: str
    target_prompt_tokens: int
    max_tokens: int


class WordFit(Record):
    """How the server's tokenizer counts our words: tokens ≈ ``overhead_tokens`` + ``tokens_per_word`` · words.

    The overhead is what the server adds: a begin-of-text token, a chat template. The defaults are typical for English.
    """

    overhead_tokens: float = 1.0
    tokens_per_word: float = 1.15

    def num_words(self, tokens: int) -> int:
        """Words that make about ``tokens`` tokens, at least one."""
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_per_word))


class PromptSource:
    """Draws prompts for a traffic profile. Two sources of equal arguments draw equal prompts."""

    def __init__(self, traffic: TrafficProfile, fit: WordFit, *, salt: str = "") -> None:
        self._traffic = traffic
        self._fit = fit
        self._salt = salt

    def stream(self, name: str) -> Iterator[Prompt]:
        """An endless stream of prompts; streams of other names hold other prompts. ``salt`` changes the openings
        only.
        """
        rng = random.Random(f"{self._traffic.seed}/{name}")  # noqa: S311 (text, not secrets)
        opening = random.Random(f"{self._traffic.seed}/{name}/{self._salt}")  # noqa: S311
        for length in mixed(self._traffic.lengths, rng):
            yield Prompt(
                text=text(self._fit.num_words(length.prompt_tokens), rng, opening),
                target_prompt_tokens=length.prompt_tokens,
                max_tokens=length.output_tokens or self._traffic.output_tokens,
            )


def mixed(lengths: Sequence[LengthClass], rng: random.Random) -> Iterator[LengthClass]:
    """An endless order of the classes that holds their weights in every block of ``MIX_BLOCK``, shuffled inside it.

    Independent draws would give a class of 5 % to between 0 and 5 of 40 requests, and with it another P99 each time.
    """
    total = sum(length.weight for length in lengths)
    owed = [0.0] * len(lengths)
    while True:
        block = []
        for _ in range(MIX_BLOCK):
            owed = [debt + length.weight / total for debt, length in zip(owed, lengths, strict=True)]
            largest = max(range(len(lengths)), key=owed.__getitem__)
            owed[largest] -= 1
            block.append(lengths[largest])
        rng.shuffle(block)
        yield from block


def text(num_words: int, rng: random.Random, opening: random.Random) -> str:
    """``num_words`` common words in sentences; the first few come from ``opening``."""
    words = opening.choices(_words(), k=min(OPENING_WORDS, num_words))
    words += rng.choices(_words(), k=num_words - len(words))
    return _sentences(words, rng)


def yardstick(first: int, last: int) -> tuple[int, str]:
    """A text to measure a tokenizer with, and its number of words: those from ``first`` to ``last`` of our shuffled
    list.

    The whole list holds each of our words once, so its mean tokens a word are those of the prompts.
    """
    rng = random.Random("yardstick")  # noqa: S311
    words = rng.sample(_words(), k=len(_words()))[first:last]
    return len(words), _sentences(words, rng)


def _sentences(words: Sequence[str], rng: random.Random) -> str:
    sentences, at = [], 0
    while at < len(words):
        length = rng.randint(6, 14)
        sentences.append(" ".join(words[at : at + length]).capitalize())
        at += length
    return ". ".join(sentences) + "."


@cache
def _words() -> tuple[str, ...]:
    """About 700 common English words, most of them one token in most vocabularies."""
    return tuple(files("model_optimizer.loadgen").joinpath("words.txt").read_text("utf-8").split())
