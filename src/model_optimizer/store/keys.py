"""What goes into a stage key: everything its result depends on, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from model_optimizer.records.base import Record, canonical_json


def stage_key(
    stage: str, version: int, inputs: Record, *, tools: Mapping[str, str], host: tuple[str, ...] | None
) -> str:
    """SHA-256 (64 hex digits) over the stage's name and version, its input, its tools and, for measurements, the host.

    ``host`` is ``None`` for results that any machine would produce (a conversion), the host's identity for
    observations (a load test).
    """
    parts = {"stage": stage, "version": version, "input": inputs.digest(), "tools": dict(tools), "host": host}
    return hashlib.sha256(canonical_json(parts)).hexdigest()
