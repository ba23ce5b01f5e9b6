"""The words a line must contain before a pattern is worth trying: what makes a huge log cheap to read.

A pattern is tried only on lines that contain one of its anchors, so every match must contain one. Anchors are whole words of
the pattern outside groups, or are named by its author in a leading comment: ``(?#word otherword)``.
"""

from __future__ import annotations

import re

from model_optimizer.errors import SpecInvalid

_GIVEN = re.compile(r"^\(\?#([^)]*)\)")
_HOLE = "\x00"  # stands for whatever may be adjacent to a word and belong to it
_WORD = re.compile(r"(?<![A-Za-z0-9\x00])[A-Za-z0-9]{3,}(?![A-Za-z0-9\x00])")
_CJK = re.compile(r"[\u3400-\u9fff]{2,}")
# Words that fill healthy logs: a last resort only.
_COMMON = frozenset(
    "model memory cuda gpu gpus cache info warning version engine request requests tokens token http post get true false none "
    "file line usr lib python site packages vllm import the and for with not from use using load loading size max min "
    "device torch import server run set all you your can this that has was are code name type data num config".split()
)


def anchors(pattern: str) -> frozenset[str]:
    """The lower-case words of which every match contains at least one (Chinese ones are searched as substrings).

    Raises ``SpecInvalid`` where the pattern has no such word and names none.
    """
    if given := _GIVEN.match(pattern):
        return frozenset(given[1].lower().split())
    found = []
    for alternative in _alternatives(pattern):
        word = _best(_plain(alternative))
        if word is None:
            raise SpecInvalid(
                f"the pattern {pattern!r} has no word to look for",
                cause="no whole word stands outside its groups, so every line of a log would have to be tried",
                fix="name one that every match contains, in front of the pattern: (?#word)",
            )
        found.append(word)
    return frozenset(found)


def _best(text: str) -> str | None:
    """The rarest-looking whole word: not a common one, and long."""
    words = [*_CJK.findall(text), *(word.lower() for word in _WORD.findall(text))]
    return max(words, key=lambda word: (word not in _COMMON, len(word)), default=None)


def _alternatives(pattern: str) -> list[str]:
    """Split at ``|`` outside groups and classes, with groups and classes replaced by holes."""
    parts, depth, position = [""], 0, 0
    while position < len(pattern):
        char = pattern[position]
        if char == "[":
            end = position + 2 if pattern[position + 1] != "^" else position + 3
            while pattern[end] != "]" or pattern[end - 1] == "\\":
                end += 1
            position, piece = end, _HOLE
        elif char == "\\":
            position, piece = position + 1, "\\" + pattern[position + 1]
        elif char in "()":
            depth, piece = depth + (1 if char == "(" else -1), _HOLE
        else:
            piece = char
        if piece == "|" and depth == 0:
            parts.append("")
        elif depth == 0 or piece == _HOLE:
            parts[-1] += piece
        position += 1
    return parts


_REDUCTIONS = (
    (re.compile(r"\\b"), " "),
    (re.compile(r"\\s(?:\+|(?![*?{]))"), " "),
    (re.compile(r"\\[dwWsSDB]"), _HOLE),
    (re.compile(r"(?:\\?.)(?:[*?]|\{\d*,?\d*\})\??"), _HOLE),
    (re.compile(r"(?<!\\)\."), _HOLE),
    (re.compile(r"\+"), _HOLE),
    (re.compile(r"\\(.)"), r"\1"),
    (re.compile(r"[\^$]"), " "),
)


def _plain(alternative: str) -> str:
    """The literal text of a pattern without groups: holes for what varies, and at its unbounded ends."""
    text = alternative
    for pattern, replacement in _REDUCTIONS:
        text = pattern.sub(replacement, text)
    return f"{_HOLE}{text}{_HOLE}" if text else ""
