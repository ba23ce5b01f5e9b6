"""A running server as its metrics page shows it over a few seconds, and what it is busy with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from model_optimizer.records.base import Record
from model_optimizer.records.verdict import Check

Regime = Literal[
    "idle",
    "erroring",
    "preempting",
    "kv-bound",
    "cpu-bound",
    "queueing",
    "client-bound",
    "prefill-bound",
    "decode-bound",
    "unknown",
]
Direction = Literal["raise", "lower", "turn on", "turn off", "add", "check"]

GaugeName = Literal["running", "waiting", "kv_usage", "slots", "prefix_hit_share"]
CounterName = Literal[
    "prompt_tokens",
    "cached_tokens",
    "prefix_queries",
    "prefix_hits",
    "generation_tokens",
    "preemptions",
    "steps",
    "prompt_seconds",
    "generation_seconds",
    "busy_seconds",
    "scheduler_cpu_seconds",
    "requests",
    "aborted",
    "failed",
]
HistogramName = Literal["ttft", "itl", "tpot", "e2e", "queue", "prefill", "decode", "step_tokens"]


class EngineMetrics(Record):
    """Where an engine's metrics page says what. Several names for one thing: the first that is on the page counts.

    ``marks``: beginnings of metric names that tell the engine. ``pages``: paths to try. ``repeated``: labels of ranks
    that all report the same numbers (the largest counts; everything else is summed). A counter may name labels:
    ``name{mode=decode|mixed}``. ``finished``: a counter by finish reason, and the label that holds the reason.
    ``settings``: what the page shows of the engine's settings, option → metric and label. ``lacks`` says what the
    page does not have; ``turn_on``: how to get the page where the server has none.
    """

    engine: str
    title: str
    marks: tuple[str, ...]
    pages: tuple[str, ...] = ("/metrics",)
    repeated: tuple[str, ...] = ()
    gauges: dict[GaugeName, tuple[str, ...]] = {}
    counters: dict[CounterName, tuple[str, ...]] = {}
    histograms: dict[HistogramName, tuple[str, ...]] = {}
    finished: tuple[str, str] | None = None
    settings: dict[str, tuple[str, str]] = {}
    lacks: tuple[str, ...] = ()
    turn_on: str
    source: str


class LeverEntry(Record):
    """A parameter that may help in a regime, as the knowledge base writes it.

    Offered where every condition in ``when`` holds and none in ``unless``. ``flag`` is ``None`` where the lever is not
    a parameter of the engine.
    """

    direction: Direction
    flag: str | None = None
    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    why: str
    why_zh: str = ""


class RegimeEntry(Record):
    """What a regime is, and its levers: ``any`` holds those of every engine."""

    id: Regime
    title: str
    title_zh: str
    means: str
    levers: dict[str, tuple[LeverEntry, ...]] = {}


class Scrape(Record):
    """One look at the server. ``page`` is empty where none came, ``error`` then says why.

    ``process_cpu_s``: CPU seconds so far of the server's processes, by id, where it runs on this host. ``gpu_busy``:
    the busiest GPU's utilization, 0 to 1.
    """

    at_s: float
    page: str = ""
    error: str | None = None
    process_cpu_s: dict[int, float] = {}
    gpu_busy: float | None = None


class Between(Record):
    """A quantile of a histogram: interpolated inside the bucket from ``low`` to ``high`` (``None``: no upper end)."""

    value: float
    low: float
    high: float | None


class WindowLatency(Record):
    """What was observed within the window alone. The mean is exact, the quantiles are as fine as the buckets."""

    count: int
    mean: float
    p50: Between
    p90: Between
    p95: Between
    p99: Between


class Window(Record):
    """The numbers of one interval of a server. ``None``: the engine's page does not say.

    Gauges are means over the looks; ``busy_share`` is the share of looks with a request running, ``waiting_share`` the
    share with one waiting. ``in_system`` is the mean number of requests in the server by Little's law (time that
    requests spent / time that passed): engines set their gauges between steps, and long steps hide what ran.
    Latencies are in seconds, rates per second. ``step_tokens`` are tokens a step of the engine, prompts and answers
    together. ``busiest_process_cores`` is the CPU use of the server's busiest process, ``scheduler_cores`` that of the
    scheduler as the engine says it. ``forward_share`` is the share of the time in which the model was computing, as
    the engine says it. ``num_restarts`` counts how often counters went back.
    """

    seconds: Annotated[float, Field(ge=0)]
    num_looks: int
    num_failed_looks: int = 0
    num_restarts: int = 0
    running: float | None = None
    running_max: float | None = None
    running_min: float | None = None
    waiting: float | None = None
    waiting_max: float | None = None
    busy_share: float | None = None
    waiting_share: float | None = None
    in_system: float | None = None
    kv_usage: float | None = None
    kv_usage_max: float | None = None
    slots: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    prefix_hit_share: float | None = None
    preemptions: float | None = None
    requests_per_s: float | None = None
    finished: dict[str, float] = {}
    steps_per_s: float | None = None
    step_tokens: float | None = None
    prompt_seconds: float | None = None
    generation_seconds: float | None = None
    ttft: WindowLatency | None = None
    itl: WindowLatency | None = None
    tpot: WindowLatency | None = None
    e2e: WindowLatency | None = None
    queue: WindowLatency | None = None
    prefill: WindowLatency | None = None
    decode: WindowLatency | None = None
    scheduler_cores: float | None = None
    forward_share: float | None = None
    busiest_process_cores: float | None = None
    all_processes_cores: float | None = None
    gpu_busy: float | None = None
    settings: dict[str, str] = {}


class Decider(Record):
    """A number that decided: what was found and the threshold it was held against, both as people read them."""

    name: str
    found: str
    threshold: str


class Lever(Record):
    """What to change, which way and why. ``now`` is the current setting, where the server shows it."""

    direction: Direction
    flag: str | None = None
    now: str | None = None
    why: str


class LiveFinding(Record):
    """A regime the server is in, with the numbers that decided. ``confidence`` is 0 to 1."""

    regime: Regime
    title: str
    means: str
    confidence: float
    deciders: tuple[Decider, ...]
    levers: tuple[Lever, ...] = ()


class LiveDiagnosis(Record):
    """What a server is busy with. ``findings`` begin with the regime that explains the others.

    ``unknown``: ``ask_for`` names what would tell. ``checks``: the server's own latencies against the SLO.
    """

    regime: Regime
    engine: str | None = None
    version: str | None = None
    model: str | None = None
    findings: tuple[LiveFinding, ...] = ()
    window: Window | None = None
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    ask_for: tuple[str, ...] = ()
