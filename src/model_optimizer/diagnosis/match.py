"""Look for many patterns in a log of any size, once, in bounded memory.

Logs repeat themselves. A line that differs from an earlier one in its digits only is tried in samples; the others are
folded to lower-case words, and only those that contain an anchor of some pattern are decoded and tried. A pattern that
was found often is retired: more of the same tells nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from model_optimizer.diagnosis.anchors import anchors
from model_optimizer.diagnosis.read import Block, decode, is_binary

MAX_HITS = 40
_SAMPLES = 60  # lines of a block that are tried although their like was seen: numbers can decide ("Waiting: 12 reqs")
_MAX_SEEN = 200_000  # shapes of lines that are remembered
_MAX_PER_WORD = 400  # lines of a block that are tried for one anchor
_DIGITS = bytes(ord("0") if chr(b).isdigit() and b < 128 else b for b in range(256))
_SHOWN_CHARS = 400
_FOLD = bytes(
    ord(chr(b).lower()) if chr(b).isalnum() and b < 128 else (b if b >= 128 or b == 10 else 32) for b in range(256)
)


class Hit(NamedTuple):
    """A line that a pattern matched: its number, its text (cut around the match if long) and the named groups."""

    line: int
    text: str
    groups: dict[str, str]


class Scan(NamedTuple):
    """All hits by pattern, in the order of the log; how many lines there were; whether it was text at all.

    ``context`` holds the patterns that matched harmless lines: these are never blamed, but tell where the program was.
    """

    hits: dict[str, list[Hit]]
    num_lines: int
    context: frozenset[str] = frozenset()
    binary: bool = False


class Patterns:
    """Patterns ready to be looked for. A line that a ``harmless`` one matches is no evidence of anything."""

    def __init__(self, patterns: Iterable[str], harmless: Iterable[str] = ()) -> None:
        self.harmless = frozenset(harmless)
        self.compiled = {p: re.compile(p, re.IGNORECASE) for p in chain(self.harmless, patterns)}
        by_anchor: dict[bytes, list[str]] = defaultdict(list)
        for pattern in self.compiled:
            for word in anchors(pattern):
                by_anchor[word.encode()].append(pattern)
        self.by_anchor = dict(by_anchor)


def scan(blocks: Iterable[Block], patterns: Patterns) -> Scan:
    """Find where the patterns match."""
    hits: dict[str, list[Hit]] = defaultdict(list)
    context: set[str] = set()
    live = {word: set(found) for word, found in patterns.by_anchor.items()}
    seen: set[bytes] = set()
    num_lines = 0
    for index, block in enumerate(blocks):
        if index == 0 and is_binary(block.data):
            return Scan({}, 0, binary=True)
        if block.data.isspace():
            continue
        num_lines = block.first + block.data.count(b"\n") - (1 if block.data.endswith(b"\n") else 0)
        numbers, data = _worth_trying(block, seen)
        for index_in_data, text, tried in _candidates(data, live):
            number = numbers[index_in_data]
            harmless = any(patterns.compiled[p].search(text) for p in patterns.harmless & tried)
            for pattern in tried - patterns.harmless:
                match = patterns.compiled[pattern].search(text)
                if match and harmless:
                    context.add(pattern)
                elif match and len(hits[pattern]) < MAX_HITS:
                    hits[pattern].append(Hit(number, _around(text, match), _groups(match)))
        _retire(live, {p for p, found in hits.items() if len(found) >= MAX_HITS})
    return Scan({p: found for p, found in hits.items() if found}, num_lines, frozenset(context))


def _worth_trying(block: Block, seen: set[bytes]) -> tuple[list[int], bytes]:
    """The lines of a block whose like was not seen before, and some of the others: their numbers and texts."""
    lines = block.data.split(b"\n")
    shapes = block.data.translate(_DIGITS).split(b"\n")
    last = len(lines) - 1
    first_of = dict(zip(reversed(shapes), range(last, -1, -1), strict=True))
    fresh = first_of.keys() - seen
    if len(seen) < _MAX_SEEN:
        seen |= fresh
    chosen = sorted({first_of[shape] for shape in fresh} | set(range(0, len(lines), len(lines) // _SAMPLES or 1)))
    return [block.first + index for index in chosen], b"\n".join([lines[index] for index in chosen])


def _candidates(data: bytes, live: dict[bytes, set[str]]) -> Iterator[tuple[int, str, set[str]]]:
    """The lines that contain an anchor: index, text, and the patterns that it belongs to.

    Progress bars rewrite their line with carriage returns: each rewriting is a line of its own here, with one index.
    """
    folded = data.translate(_FOLD)
    tokens = set(folded.split())
    present = [word for word in live if (word in tokens if _stands_alone(word) else word.lstrip(b"~") in folded)]
    tried: dict[tuple[int, int], set[str]] = {}
    for word in present:
        text = word.lstrip(b"~")
        position, times = folded.find(text), 0
        while position >= 0 and times < _MAX_PER_WORD:
            start, end = _segment(data, position)
            tried.setdefault((start, end), set()).update(live[word])
            position, times = folded.find(text, end), times + 1
    index = counted = 0
    for start, end in sorted(tried):
        index += data.count(b"\n", counted, start)
        counted = start
        yield index, decode(data[start:end]).replace("\x00", "").strip(), tried[start, end]


def _stands_alone(word: bytes) -> bool:
    return word.isascii() and not word.startswith(b"~")


def _segment(data: bytes, position: int) -> tuple[int, int]:
    """The stretch between line breaks or carriage returns around a position."""
    start = data.rfind(b"\n", 0, position) + 1
    start = max(start, data.rfind(b"\r", start, position) + 1)
    end = data.find(b"\n", position)
    end = len(data) if end < 0 else end
    carriage = data.find(b"\r", position, end)
    return start, carriage if carriage >= 0 else end


def _around(text: str, match: re.Match[str]) -> str:
    """The line, or the part of it around the match where it is very long."""
    if len(text) <= 2 * _SHOWN_CHARS:
        return text
    start = max(0, match.start() - _SHOWN_CHARS)
    return text[start : match.end() + _SHOWN_CHARS][: 4 * _SHOWN_CHARS]


def _groups(match: re.Match[str]) -> dict[str, str]:
    return {name: value.strip() for name, value in match.groupdict().items() if value}


def _retire(live: dict[bytes, set[str]], finished: Collection[str]) -> None:
    if not finished:
        return
    for word in list(live):
        live[word].difference_update(finished)
        if not live[word]:
            del live[word]
