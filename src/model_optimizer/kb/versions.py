"""Versions and compute capabilities compared as what they are: numbers in order, never floats (12.10 is after 12.9)."""

from __future__ import annotations

import re
from functools import lru_cache

_UPDATE = re.compile(r"(\d)u(\d+)")


@lru_cache(maxsize=1024)
def version_key(text: str) -> tuple[int, ...]:
    """``0.24.0.post1+cu130`` → ``(0, 24)``: the numbers up to the first other part, without zeros at the end.

    CUDA updates sort after their release: ``12.2u1`` → ``(12, 2, 0, 1)``. Raises ``ValueError`` where no number is.
    """
    release = _UPDATE.sub(r"\1.0.\2", text.strip().removeprefix("v").split("+")[0])
    match = re.match(r"\d+(\.\d+)*", release)
    if match is None:
        raise ValueError(f"{text!r} is not a version; write for example 0.33.0")
    numbers = [int(part) for part in match[0].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def at_least(version: str, floor: str) -> bool:
    """True where ``version`` is ``floor`` or later."""
    return version_key(version) >= version_key(floor)


def within(version: str, since: str | None, until: str | None) -> bool:
    """True where ``since`` ≤ ``version`` < ``until``; ``None`` leaves that end open."""
    return (since is None or at_least(version, since)) and (until is None or not at_least(version, until))
