"""The questions put to adapters, and their answers."""

from __future__ import annotations

from typing import Any

from model_optimizer.records.base import Record
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.model import ModelSpec


class Fit(Record):
    """May this model run here, this way? Everything an adapter may know to answer."""

    model: ModelSpec
    host: HostSpec
    scheme: str
    max_model_len: int
    concurrency: int = 1
    weight_bytes: int


class WhyNot(Record):
    """A refusal: a code for machines, a sentence for people, and the way out where there is one."""

    code: str
    reason: str
    fix: str | None = None


class Serve(Record):
    """Start a server for this artifact. ``model_path`` is absolute: a launch is made right before it is run."""

    model_path: str
    port: int
    max_model_len: int
    concurrency: int
    cpu_cores: int
    device: str = "cpu"
    engine_args: dict[str, str | int | float | bool] = {}


class Launch(Record):
    """How to start a server in ``tool``'s environment: ``worker`` (a script of ours) or ``module`` (``python -m``)."""

    tool: str
    worker: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    health_path: str = "/health"
    metrics_path: str | None = "/metrics"
    served_model: str
    ready_timeout_s: float = 300.0
    startup_memory_bytes: int = 0


class Job(Record):
    """Work for a tool: a worker script, in ``tool``'s environment, with a JSON payload.

    ``target`` (where set) is the folder the worker fills; the host makes it and the store publishes it.
    """

    tool: str
    worker: str
    payload: dict[str, Any] = {}
    env: dict[str, str] = {}
    timeout_s: float = 3600.0
    expected_output_bytes: int = 0


class Gauges(Record):
    """A moment of a running engine, from its metrics page. ``None``: the engine does not say."""

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    preemptions: float | None = None
