"""Known causes of failures, and what a log says about them."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from model_optimizer.records.base import Record

CauseKind = Literal["cause", "harmless", "inconclusive"]
CauseSeverity = Literal["error", "warning", "note"]
DiagnosisVerdict = Literal["cause", "none", "unknown"]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"not a regular expression: {pattern!r}: {error}") from error
    return pattern


class Signature(Record):
    """A pattern that a line of the log must hold, and what else must (not) be known for it to count.

    ``strength`` is the confidence that this line alone gives. ``needs`` are patterns that must all be found somewhere
    in the log or in the facts (written ``key: value``), ``unless`` patterns of which none may be. Named groups are
    numbers and names for the fix.
    """

    match: str
    strength: Annotated[float, Field(gt=0, le=1)] = 0.9
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    @field_validator("match")
    @classmethod
    def _match_compiles(cls, value: str) -> str:
        return _compiles(value)

    @field_validator("needs", "unless")
    @classmethod
    def _conditions_compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(_compiles, value))


class CauseSource(Record):
    """Where the knowledge is from. ``status``: ``report`` (a public report), ``docs`` (a vendor page that we read),
    ``pointer`` (a vendor page worth reading that we did not read), ``source`` (the program's own text).
    """

    url: str
    read: str
    status: Literal["report", "docs", "pointer", "source"]


class CauseSample(Record):
    """A log that this entry must recognise: the tests run it. ``evidence`` is part of the line that must be shown.

    A plain text is a log of one line, which is the evidence.
    """

    log: str
    evidence: str
    facts: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _from_line(cls, value: object) -> object:
        return {"log": value, "evidence": value.strip()} if isinstance(value, str) else value


class Cause(Record):
    """One entry of the knowledge of failures.

    ``kind``: a ``cause`` has a fix; a ``harmless`` line must never be blamed; an ``inconclusive`` one tells that
    something broke but not what, and asks for what would tell. ``supports`` and ``against`` are patterns that raise
    and halve the confidence. ``outranks`` names causes whose messages this one produces. ``symptom``: it follows
    from something else whenever something else is found. ``numbers`` are patterns with named groups that only fill
    in the fix, where ``{{name|else}}`` is replaced.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    kind: CauseKind = "cause"
    title: str
    title_zh: str = ""
    stages: tuple[str, ...] = ()
    severity: CauseSeverity = "error"
    why: str = ""
    signatures: Annotated[tuple[Signature, ...], Field(min_length=1)]
    supports: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    outranks: tuple[str, ...] = ()
    symptom: bool = False
    fix: tuple[str, ...] = ()
    verify: tuple[str, ...] = ()
    ask_for: tuple[str, ...] = ()
    sources: tuple[CauseSource, ...] = ()
    samples: Annotated[tuple[CauseSample, ...], Field(min_length=1)]

    @field_validator("supports", "against", "numbers")
    @classmethod
    def _patterns_compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(_compiles, value))

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.kind == "cause" and not (self.fix and self.verify and self.stages and self.title_zh):
            raise ValueError("a cause needs stages, title_zh, fix and verify")
        if self.kind == "inconclusive" and not self.ask_for:
            raise ValueError("an inconclusive entry needs ask_for")
        return self

    @property
    def patterns(self) -> tuple[str, ...]:
        """Every pattern of the entry that must be looked for in a log."""
        conditions = (p for s in self.signatures for p in (s.match, *s.needs, *s.unless))
        return (*conditions, *self.supports, *self.against, *self.numbers)


class Evidence(Record):
    """A line of the log: its number (from 1) and its text without colours, cut where very long."""

    line: int
    text: str


class Finding(Record):
    """A cause that the log shows, with the numbers of this log filled into the fix. ``confidence`` is 0 to 1."""

    cause: str
    title: str
    severity: CauseSeverity
    confidence: float
    evidence: Evidence
    fix: tuple[str, ...]
    verify: tuple[str, ...]
    numbers: dict[str, str] = {}


class Diagnosis(Record):
    """What a log says. ``findings`` are ranked, most likely root cause first; empty unless ``verdict`` is ``cause``.

    ``none``: nothing is wrong in this text. ``unknown``: something is, or may be, and the text does not say what:
    ``ask_for`` names what would, ``considered`` what could not be decided, ``first_error`` the first line that
    reports an error.
    """

    verdict: DiagnosisVerdict
    findings: tuple[Finding, ...] = ()
    ask_for: tuple[str, ...] = ()
    considered: tuple[Finding, ...] = ()
    first_error: Evidence | None = None
    num_lines: int = 0

    def contract(self) -> dict[str, object]:
        """The machine-readable form that ``diagnose --json`` prints."""
        findings = [
            f.model_dump(mode="json", include={"cause", "confidence", "evidence", "fix", "verify"})
            for f in self.findings
        ]
        return {"verdict": self.verdict, "findings": findings, "ask_for": list(self.ask_for)}
