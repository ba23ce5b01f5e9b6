"""What an engine adapter is: a module that answers these questions and does nothing else.

An adapter starts no process, opens no socket and imports no engine. Adding one: docs/adding-an-engine.md.
"""

from __future__ import annotations

from typing import Protocol

from model_optimizer.records.model import Format
from model_optimizer.records.tooling import Fit, Gauges, Job, Launch, Serve, WhyNot


class Engine(Protocol):
    """Turns an artifact into a server."""

    NAME: str
    """As people write it: ``llama.cpp``."""

    TOOL: str
    """The tool environment it runs in."""

    FORMATS: frozenset[Format]
    """What it loads."""

    def why_not(self, fit: Fit) -> WhyNot | None:
        """``None``: it can serve this. Else the reason, for the user."""
        ...

    def memory_bytes(self, fit: Fit) -> int:
        """Predicted peak memory of the server process tree: weights, KV cache for all sequences, overhead."""
        ...

    def engine_args(self, fit: Fit) -> dict[str, str | int | float | bool]:
        """The starting parameters for this machine, in the engine's own names."""
        ...

    def default_args(self, fit: Fit) -> dict[str, str | int | float | bool]:
        """The least that the engine must be told here to start with its *own* defaults: what tuning has to beat."""
        ...

    def launch(self, serve: Serve) -> Launch:
        """The command that serves the artifact on ``127.0.0.1:serve.port``."""
        ...

    def command(self, serve: Serve) -> str | None:
        """What a person types to start the same with the engine's own program; ``None`` where it has none."""
        ...

    def kv_tokens(self, log_text: str, metrics_text: str) -> int | None:
        """Room of the KV cache in tokens, all sequences together, as the running engine says it."""
        ...

    def logits_job(self, model_path: str, reference_path: str, engine_args: dict[str, str | int | float | bool]) -> Job:
        """The job that makes this engine compute the reference's tokens; evaluators/logits.py says what it writes."""
        ...

    def gauges(self, metrics_text: str) -> Gauges:
        """Numbers of its Prometheus page; ``None`` fields where it has none."""
        ...
