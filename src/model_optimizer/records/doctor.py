"""What the doctor read on a host, and what it makes of it."""

from __future__ import annotations

from typing import Literal

from model_optimizer.records.base import Record

ReadingStatus = Literal["ok", "absent", "denied", "timeout", "failed"]
Severity = Literal["ok", "info", "warning", "error"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info", "ok")
"""Worst first. ``error``: the work asked for cannot be done; ``warning``: it will be slow, unsafe or fail later."""


class Reading(Record):
    """One source, read once: a file's text or a command's output.

    ``source`` is what a person would type or open: ``/proc/meminfo``, ``nvidia-smi -q``. ``status`` tells an absent
    file or program from one that may not be read, took too long, or answered with an error (``exit_code``).
    """

    source: str
    status: ReadingStatus = "ok"
    text: str = ""
    exit_code: int | None = None
    seconds: float = 0.0


class Survey(Record):
    """Everything that was read on one host: the only input of the checks, so a recorded one is a test's host.

    ``readings`` maps a probe's id (``meminfo``, ``nvidia-smi-q``) to what it read.
    """

    taken_at: str
    readings: dict[str, Reading] = {}

    def text(self, probe: str) -> str:
        """What that probe read; empty where it was not asked or could not read."""
        reading = self.readings.get(probe)
        return reading.text if reading is not None and reading.status in ("ok", "failed") else ""

    def status(self, probe: str) -> ReadingStatus:
        """How that probe fared; ``absent`` where it was not asked."""
        reading = self.readings.get(probe)
        return "absent" if reading is None else reading.status


class Seen(Record):
    """A line of evidence and where it was read."""

    source: str
    text: str


class Hit(Record):
    """A check's statement: this condition holds here. ``values`` fill the texts; ``evidence`` shows it."""

    id: str
    evidence: tuple[Seen, ...]
    values: dict[str, str | int | float] = {}
    severity: Severity | None = None  # where it differs from the condition's usual one


class Condition(Record):
    """Knowledge about one condition of a host: texts with ``{value}`` places, fixes by distribution.

    ``fix`` maps a distribution family (``debian``, ``rhel``, ``suse``, ``arch``, ``wsl2``, ``container``, ``any``) to
    commands; the most specific that matches is shown. ``fact`` names the source of the statement (a URL).
    """

    id: str
    severity: Severity
    title: str
    title_zh: str
    cause: str
    fix: dict[str, tuple[str, ...]] = {}
    verify: tuple[str, ...] = ()
    fact: str | None = None


class HostFinding(Record):
    """A condition found on this host, texts filled in, with the commands for this distribution."""

    id: str
    severity: Severity
    title: str
    cause: str
    evidence: tuple[Seen, ...]
    fix: tuple[str, ...] = ()
    verify: tuple[str, ...] = ()
    fact: str | None = None


class ProbedValue(Record):
    """One measured rate of the micro-probe, beside what the knowledge base says of this hardware.

    ``share`` = measured / expected; both in ``unit``. ``how`` says what was run.
    """

    name: str
    unit: str
    measured: float
    expected: float | None = None
    share: float | None = None
    how: str
    note: str = ""


class Examination(Record):
    """The doctor's whole answer: findings worst first, what was found in order, what works here, what was measured."""

    taken_at: str
    host: str
    findings: tuple[HostFinding, ...]
    in_order: tuple[str, ...] = ()
    works: tuple[str, ...] = ()
    measured: tuple[ProbedValue, ...] = ()
    num_probes: int
    seconds: float

    @property
    def severity(self) -> Severity:
        """The worst finding's."""
        found = {finding.severity for finding in self.findings}
        return next((severity for severity in SEVERITIES if severity in found), "ok")
