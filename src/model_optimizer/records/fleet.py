"""A plan for GPUs that need not be here: options with predictions, refusals with reasons. All of it predicted."""

from __future__ import annotations

from model_optimizer.records.base import Record
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.knowledge import State
from model_optimizer.records.sizing import MemoryPlan, Parallelism, SpeedEstimate
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import SLO, Objective, TrafficProfile


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
        kv = "" if self.kv_dtype == "auto" else f" · KV {self.kv_dtype}"
        return f"{self.scheme} · {self.engine} · {f'{count}x ' if count > 1 else ''}{self.gpu}{kv}"


class Price(Record):
    """What an option costs. ``None``: nobody's price is known. ``basis`` says whose price it is and from when."""

    usd_per_hour: float | None = None
    usd_per_million_tokens: float | None = None
    power_usd_per_month: float | None = None
    basis: str = ""


class Option(Record):
    """A deployment with its predictions.

    ``light`` is the speed of a single user; ``capacity`` the heaviest load at which every limit is predicted to hold
    (``None``: none is). ``num_gpus`` serves the request rate of the traffic where it names one, else it is one replica.
    """

    deployment: Deployment
    state: State
    memory: MemoryPlan
    light: SpeedEstimate
    capacity: SpeedEstimate | None = None
    checks: tuple[Check, ...] = ()
    num_gpus: int = 1
    price: Price = Price()
    score: float = 0.0
    binding: str = ""

    @property
    def meets(self) -> bool:
        """True where the SLO is predicted to hold at some load."""
        return self.capacity is not None


class Fleet(Record):
    """Options over one or many GPUs, best first; what was refused; and, where nothing meets the SLO, the way out."""

    model: str
    traffic: TrafficProfile
    slo: SLO
    objective: Objective
    options: tuple[Option, ...]
    refused: tuple[Refusal, ...]
    nearest: Option | None = None
    levers: tuple[str, ...] = ()
