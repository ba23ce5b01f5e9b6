"""Names as people type them: what counts as the same, and what was probably meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from model_optimizer.errors import UnknownName


def nearest(name: str, known: Sequence[str], limit: int = 3) -> list[str]:
    """Up to ``limit`` known names that look most like ``name``, best first; poor matches left out."""
    wanted = name.lower()
    scored = [(SequenceMatcher(None, wanted, candidate.lower()).ratio(), candidate) for candidate in known]
    best = sorted((pair for pair in scored if pair[0] >= 0.5), key=lambda pair: -pair[0])
    return [candidate for _, candidate in best[:limit]]


def unknown(kind: str, name: str, known: Sequence[str], *, listed_by: str = "") -> UnknownName:
    """The error for a name we do not know; the caller raises it."""
    near = nearest(name, known)
    choices = ", ".join(near if near else known)
    question = f"did you mean {choices}?" if near else f"choose one of: {choices}"
    return UnknownName(
        f"no {kind} named {name!r}",
        cause=f"the knowledge base has {len(known)} names of that kind and none matches",
        fix=f"{question} {listed_by}".strip(),
        evidence=near,
    )
