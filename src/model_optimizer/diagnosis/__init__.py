"""From the text of a log to the root cause, with the line that shows it; or to what else must be sent.

``read`` makes numbered blocks of any source, ``match`` finds the known patterns in them, ``judge`` ranks and abstains,
``facts`` fills in numbers. The knowledge itself is data (``kb/data/causes``) and comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from model_optimizer.diagnosis.facts import fact_lines
from model_optimizer.diagnosis.judge import CERTAIN, ENOUGH, ERRORS, Known, findings, first_error
from model_optimizer.diagnosis.match import Patterns, scan
from model_optimizer.diagnosis.read import Source, blocks
from model_optimizer.records.diagnosis import Cause, Diagnosis, Evidence, Finding

__all__ = ["diagnose"]

_ASK_EMPTY = ("the log itself: this text is empty",)
_ASK_BINARY = ("the log as text: this is a binary or compressed file",)
_ASK_MORE = (
    "the whole log from the start of the process, not only its end",
    "the command line or configuration, and the versions of the engine, torch and the driver",
    "the output of nvidia-smi (or rocm-smi) and whether it runs in a container",
)


def diagnose(
    source: Source, causes: tuple[Cause, ...], facts: Mapping[str, object] | None = None, engine: str | None = None
) -> Diagnosis:
    """Find the root cause in a log: a text, an open file, or its lines. Memory stays bounded for files of any size.

    ``facts`` is a flat mapping of what is known of the host (GPU, driver, OS, versions, container), because the same
    message can have several causes. ``causes`` are those of ``model_optimizer.kb.causes``.
    """
    seen = scan(blocks(source), _patterns(causes))
    if seen.binary or not seen.num_lines:
        return Diagnosis(verdict="unknown", ask_for=_ASK_BINARY if seen.binary else _ASK_EMPTY)
    known = Known(seen, fact_lines(facts or {}, engine))
    ranked = findings((c for c in causes if c.kind == "cause"), known)
    error = first_error(seen)
    symptoms = {c.id for c in causes if c.symptom}
    claimed = tuple(f for f in ranked if f.confidence >= ENOUGH and not (f.cause in symptoms and _precedes(error, f)))
    doubted = tuple(f for f in ranked if f not in claimed)
    if not claimed:
        return _undecided(causes, known, doubted, error)
    return Diagnosis(
        verdict="cause",
        findings=claimed,
        considered=doubted,
        ask_for=(_questions(causes, claimed[0].cause) or _ASK_MORE) if claimed[0].confidence < CERTAIN else (),
        first_error=error,
        num_lines=seen.num_lines,
    )


def _precedes(error: Evidence | None, finding: Finding) -> bool:
    """True where something else failed before: then a symptom tells nothing of its own."""
    return error is not None and error.line < finding.evidence.line


def _patterns(causes: tuple[Cause, ...]) -> Patterns:
    wanted = [p for c in causes if c.kind != "harmless" for p in c.patterns]
    return _compiled((*wanted, *ERRORS), tuple(p for c in causes if c.kind == "harmless" for p in c.patterns))


@lru_cache(maxsize=4)
def _compiled(wanted: tuple[str, ...], harmless: tuple[str, ...]) -> Patterns:
    return Patterns(wanted, harmless)


def _undecided(
    causes: tuple[Cause, ...], known: Known, doubted: tuple[Finding, ...], error: Evidence | None
) -> Diagnosis:
    """Nothing is claimed: is nothing wrong, or does the text not say what?"""
    vague = findings((c for c in causes if c.kind == "inconclusive"), known)
    if not (vague or doubted or error):
        return Diagnosis(verdict="none", num_lines=known.scan.num_lines)
    questions = [q for f in (*vague, *doubted) for q in _questions(causes, f.cause)]
    return Diagnosis(
        verdict="unknown",
        ask_for=tuple(dict.fromkeys(questions)) or _ASK_MORE,
        considered=doubted,
        first_error=error,
        num_lines=known.scan.num_lines,
    )


def _questions(causes: Iterable[Cause], cause_id: str) -> tuple[str, ...]:
    return next(c.ask_for for c in causes if c.id == cause_id)
