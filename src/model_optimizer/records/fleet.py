"""A plan for GPUs that need not be here: options with predictions, refusals with reasons. All of it predicted."""

from __future__ import annotations

from typing import Literal

from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.knowledge import Source, State
from model_optimizer.records.sizing import MemoryPlan, Parallelism, SpeedEstimate, Term
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import SLO, Objective, TrafficProfile

LeverKind = Literal["scheme", "concurrency", "context", "more_gpus", "other_gpu", "limit"]


class Rung(Record):
    """A place on the ladder of what to try first on a GPU generation: orders what is about equal, refuses nothing."""

    number: int
    generation: str
    schemes: tuple[str, ...]
    engines: tuple[str, ...] = ()
    why: str
    sources: tuple[Source, ...]


class Deployment(Record):
    """One replica: engine and version, scheme, GPUs, KV cache type, context, starting parameters in engine names."""

    gpu: str
    engine: str
    version: str
    scheme: str
    parallelism: Parallelism = Parallelism()
    kv_dtype: str = "auto"
    max_model_len: int
    engine_args: dict[str, str | int | float | bool] = {}

    @property
    def label(self) -> str:
        """``fp8 · vllm · 2x h100-sxm``."""
        count = self.parallelism.num_gpus
        kv = "" if self.kv_dtype == "auto" else f" · {self.kv_dtype}"
        return f"{self.scheme} · {self.engine}{kv} · {f'{count}x ' if count > 1 else ''}{self.gpu}"


class Price(Record):
    """What an option costs at the load that is asked for. ``None``: nobody's price is known.

    ``basis`` says whose price it is and from when; ``power_basis`` the same of the energy.
    """

    usd_per_hour: float | None = None
    usd_per_million_tokens: float | None = None
    power_usd_per_month: float | None = None
    basis: str = ""
    power_basis: str = ""


class Option(Record):
    """A deployment with its predictions.

    ``light`` is the speed of a single user; ``capacity`` the heaviest load of one replica at which every limit is
    predicted to hold (``None``: none is), ``binding`` what stops the next user. ``num_gpus`` serve the traffic's
    heaviest load, ``loaded`` is the speed of one replica there. ``why`` is its place in the order, ``notes`` what must
    be known before it is used.
    """

    deployment: Deployment
    state: State
    memory: MemoryPlan
    light: SpeedEstimate
    capacity: SpeedEstimate | None = None
    loaded: SpeedEstimate | None = None
    checks: tuple[Check, ...] = ()
    num_gpus: int = 1
    price: Price = Price()
    score: float = 0.0
    binding: str = ""
    why: str = ""
    notes: tuple[str, ...] = ()

    @property
    def meets(self) -> bool:
        """True where the SLO is predicted to hold at the load at which it is asked for."""
        return self.capacity is not None and all(check.ok is not False for check in self.checks)


class Lever(Record):
    """One change that makes the SLO feasible, by prediction. ``usd_per_hour`` is what it costs in all, where known."""

    kind: LeverKind
    change: str
    result: str
    usd_per_hour: float | None = None


class Section(Record):
    """A part of an explanation: a title and its lines."""

    title: str
    terms: tuple[Term, ...]


class Fleet(Record):
    """Options over one or many GPUs, best first; what was refused; and, where nothing meets the SLO, the way out.

    ``options`` holds the best of each GPU; ``considered`` counts all that were worked out. ``at`` is the load the SLO
    is asked for, ``load`` the heaviest of the traffic: GPUs and costs are for that one. ``notes`` are doubts about the
    model or the prices. ``explanation`` is the arithmetic of the best option, where it was asked for.
    """

    model: str
    gpu: str = ""
    traffic: TrafficProfile
    slo: SLO
    objective: Objective
    at: str = ""
    load: str = ""
    options: tuple[Option, ...]
    refused: tuple[Refusal, ...]
    considered: int = 0
    nearest: Option | None = None
    levers: tuple[Lever, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    explanation: tuple[Section, ...] = ()

    @property
    def feasible(self) -> bool:
        """True where some option is predicted to keep the SLO."""
        return any(option.meets for option in self.options)
