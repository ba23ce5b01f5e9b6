"""The words a line must contain before a pattern is worth trying: what makes a huge log cheap to read.

A pattern is tried only on lines that contain one of its anchors, so every match must contain one. They are derived from
the pattern: a word that stands whole in it, or one for each branch; the ends of a pattern count as ends of a word if
need be. Where there is none (``error\\w*``), its author names them in a comment before the alternative:
``(?#error errors)error\\w*``, or ``(?#~error)`` for any word that contains it.
"""

from __future__ import annotations

import re
from re import _constants as c  # type: ignore[attr-defined]  # the parser of regular expressions has no public name
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from model_optimizer.errors import SpecInvalid

_GIVEN = re.compile(r"\(\?#([^)]*)\)")
_DEPTH = 2  # how many branches are gone through at once: the work grows with that power
_GAP, _EDGE = "\x00", " "  # something that may belong to the word beside it; something that cannot
_WORD = re.compile(r"(?<![a-z0-9\x00])[a-z0-9]{3,}(?![a-z0-9\x00])")
_CJK = re.compile(r"[\u3400-\u9fff]{2,}")
# Words that fill healthy logs: a last resort only.
_COMMON_TEXT = """
    model memory cuda gpu gpus cache info warning version engine request requests tokens token http post get true
    false none file line usr lib python site packages vllm import the and for with not from use using load loading
    size max min device torch server run set all you your can this that has was are code name type data num config
"""
_COMMON = frozenset(_COMMON_TEXT.split())


class _Branch(NamedTuple):
    """Alternatives: each a list of characters and branches."""

    ways: list[list[Any]]


def anchors(pattern: str) -> frozenset[str]:
    """The lower-case words of which every match contains at least one (Chinese ones are searched as substrings).

    Raises ``SpecInvalid`` where the pattern has no such word and names none.
    """
    found: set[str] = set()
    for alternative in _alternatives(pattern):
        given = _GIVEN.match(alternative)
        words = frozenset(given[1].lower().split()) if given else _derived(alternative)
        if not words:
            raise SpecInvalid(
                f"the pattern {pattern!r} has no word to look for",
                cause=f"no word is sure to stand whole in {alternative!r}: every line of a log would have to be tried",
                fix="name those that its matches contain, in front of the alternative: (?#word words)",
            )
        found |= words
    return frozenset(found)


def _derived(alternative: str) -> frozenset[str] | None:
    items = _items(parser.parse(alternative))
    return _best([_GAP, *items, _GAP]) or _best([_EDGE, *items, _EDGE])


def _best(items: list[Any], depth: int = _DEPTH) -> frozenset[str] | None:
    """The rarest-looking word of a sequence, else one for each way of its best branch, else a common word."""
    text = "".join(item if isinstance(item, str) else _GAP for item in items).lower()
    words = [*_CJK.findall(text), *_WORD.findall(text)]
    word = max(words, key=lambda w: (w not in _COMMON, len(w)), default=None)
    if word is not None and word not in _COMMON:
        return frozenset((word,))
    branches = [index for index, item in enumerate(items) if isinstance(item, _Branch)] if depth else []
    choices = [found for index in branches if (found := _ways(items, index, depth - 1))]
    rare = [found for found in choices if not found & _COMMON]
    if rare:
        return min(rare, key=len)
    return frozenset((word,)) if word is not None else min(choices, key=len, default=None)


def _ways(items: list[Any], index: int, depth: int) -> frozenset[str] | None:
    """A word for each way through one branch, in its surroundings."""
    found: set[str] = set()
    for way in items[index].ways:
        words = _best([*items[:index], *way, *items[index + 1 :]], depth)
        if words is None:
            return None
        found |= words
    return frozenset(found)


def _items(parsed: Any) -> list[Any]:
    """A parsed pattern as characters, edges, gaps and branches."""
    return [item for code, value in parsed for item in _item(code, value)]


def _item(code: Any, value: Any) -> list[Any]:
    if code is c.LITERAL:
        return [chr(value) if chr(value).isalnum() else _EDGE]
    if code is c.AT:
        return ["" if value is c.AT_NON_BOUNDARY else _EDGE]
    if code is c.IN:
        return [_EDGE if all(map(_separates, value)) else _GAP]
    if code is c.SUBPATTERN:
        return _items(value[3])
    if code is c.BRANCH:
        return [_Branch([_items(way) for way in value[1]])]
    if code in (c.MAX_REPEAT, c.MIN_REPEAT):
        low, high, inner = value
        once = _items(inner)
        if high > 1 and any(item != _EDGE for item in once):
            return [_GAP]
        if low:
            return once
        ways = once[0].ways if len(once) == 1 and isinstance(once[0], _Branch) else [once]
        return [_Branch([*ways, []])]
    return [""] if code in (c.ASSERT, c.ASSERT_NOT) else [_GAP]


def _separates(member: tuple[Any, Any]) -> bool:
    """True for a member of a character class that is never part of a word."""
    code, value = member
    if code is c.LITERAL:
        return not chr(value).isalnum()
    return code is c.CATEGORY and value in (c.CATEGORY_SPACE, c.CATEGORY_NOT_WORD)


def _alternatives(pattern: str) -> list[str]:
    """Split at ``|`` outside groups and classes."""
    parts, depth, position = [""], 0, 0
    while position < len(pattern):
        piece = pattern[position]
        if piece == "\\":
            piece = pattern[position : position + 2]
        elif given := _GIVEN.match(pattern, position):
            piece = given[0]
        elif piece == "[":
            piece = pattern[position : _class_end(pattern, position) + 1]
        elif piece in "()":
            depth += 1 if piece == "(" else -1
        elif piece == "|" and depth == 0:
            parts.append("")
        if not (piece == "|" and depth == 0):
            parts[-1] += piece
        position += len(piece)
    return parts


def _class_end(pattern: str, start: int) -> int:
    end = start + (3 if pattern[start + 1] == "^" else 2)
    while pattern[end] != "]" or pattern[end - 1] == "\\":
        end += 1
    return end
