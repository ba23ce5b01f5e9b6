"""A stage's error as data, with what the knowledge base of causes makes of its log."""

from __future__ import annotations

from pathlib import Path

from model_optimizer.diagnosis import diagnose
from model_optimizer.errors import StageFailure
from model_optimizer.kb.causes import causes
from model_optimizer.records.verdict import Failure


def as_failure(failure: StageFailure, engine: str) -> Failure:
    """What went wrong, with the first finding of diagnose where its log tells."""
    finding = None
    if failure.log is not None and Path(failure.log).is_file():
        with Path(failure.log).open("rb") as log:
            finding = next(iter(diagnose(log, causes(), engine=engine).findings), None)
    return Failure(
        error=type(failure).__name__,
        what=failure.what,
        cause=failure.cause,
        fix="; ".join(finding.fix) if finding else failure.fix,
        evidence=failure.evidence,
        log=failure.log,
        finding=finding,
    )
