"""What a transform is: a module that says which artifacts it turns into which, and with what job."""

from __future__ import annotations

from typing import Literal, Protocol

from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.model import Format, ModelSpec
from model_optimizer.records.tooling import Fit, Job, WhyNot


class Transform(Protocol):
    """Turns one artifact into another: quantization and conversion are the same kind of step."""

    NAME: str
    TOOL: str
    VERSION: int
    """Raised when the same options would give other bytes."""

    KIND: Literal["quantize", "convert"]
    ACCEPTS: frozenset[Format]
    PRODUCES: Format

    def why_not(self, fit: Fit) -> WhyNot | None:
        """``None``: it can do this. Else the reason, for the user."""
        ...

    def output_bytes(self, step: TransformStep, model: ModelSpec) -> int:
        """Predicted size of what it writes, for the disk check and the plan."""
        ...

    def output_main(self, step: TransformStep) -> str:
        """The file an engine is pointed at, relative to the output folder; empty for the folder itself."""
        ...

    def job(self, step: TransformStep, source: str, target: str) -> Job:
        """The job: ``source`` is an absolute path (folder or file), ``target`` an empty folder to fill."""
        ...
