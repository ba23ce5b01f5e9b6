"""Look for many patterns in a log of any size, once, in bounded memory.

A block of lines is folded to lower-case words; only lines that contain an anchor of some pattern are decoded and tried.
A pattern that was found often is retired: more of the same tells nothing.
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
    """All hits by pattern, in the order of the log; how many lines there were; whether it was text at all."""

    hits: dict[str, list[Hit]]
    num_lines: int
    num_harmless: int = 0
    binary: bool = False


class Patterns:
    """Patterns ready to be looked for. ``harmless`` ones silence the line they match for all others."""

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
    live = {word: set(found) for word, found in patterns.by_anchor.items()}
    num_lines = num_harmless = 0
    for index, block in enumerate(blocks):
        if index == 0 and is_binary(block.data):
            return Scan({}, 0, binary=True)
        num_lines = block.first + block.data.count(b"\n") - (1 if block.data.endswith(b"\n") else 0)
        for number, text, tried in _candidates(block, live):
            if any(p in tried and patterns.compiled[p].search(text) for p in patterns.harmless & tried):
                num_harmless += 1
                continue
            for pattern in tried:
                match = patterns.compiled[pattern].search(text)
                if match and len(hits[pattern]) < MAX_HITS:
                    hits[pattern].append(Hit(number, _around(text, match), _groups(match)))
        _retire(live, {p for p, found in hits.items() if len(found) >= MAX_HITS})
    return Scan({p: found for p, found in hits.items() if found}, num_lines, num_harmless)


def _candidates(block: Block, live: dict[bytes, set[str]]) -> Iterator[tuple[int, str, set[str]]]:
    """The lines of a block that contain an anchor: number, text, and the patterns that it belongs to.

    Progress bars rewrite their line with carriage returns: each rewriting is a line of its own here, with one number.
    """
    folded = block.data.translate(_FOLD)
    tokens = set(folded.split())
    present = [w for w in live if (w in tokens if w.isascii() else w in folded)]
    tried: dict[tuple[int, int], set[str]] = {}
    for word in present:
        position = folded.find(word)
        while position >= 0:
            start, end = _segment(block.data, position)
            tried.setdefault((start, end), set()).update(live[word])
            position = folded.find(word, end)
    number, counted = block.first, 0
    for start, end in sorted(tried):
        number += block.data.count(b"\n", counted, start)
        counted = start
        yield number, decode(block.data[start:end]).replace("\x00", "").strip(), tried[start, end]


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
