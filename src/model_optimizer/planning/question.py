"""What is asked of the planner, and an answer before it becomes a record: thousands a plan, so plain tuples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from model_optimizer.kb import query
from model_optimizer.planning.promises import lightest, mix_of
from model_optimizer.planning.stored import stored_schemes
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import EngineFacts, InstalledEngine, OsName, SchemeSpec, State
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import MemoryPlan, Parallelism
from model_optimizer.records.workload import SLO, Load, Objective, TrafficProfile
from model_optimizer.sizing.cost import replicas_for
from model_optimizer.sizing.memory import weights_by_class
from model_optimizer.sizing.speed import Mix, Steady, active_parameters

HEADROOM = 0.2
"""Share of a replica's capacity left free where requests arrive at random: at full capacity queues only grow."""


class Question:
    """A model, its traffic and its promises, with what is worked out once for all GPUs."""

    def __init__(
        self,
        model: ModelSpec,
        traffic: TrafficProfile,
        slo: SLO,
        *,
        objective: Objective,
        max_model_len: int,
        os: OsName = "linux",
        driver: str | None = None,
        engines: tuple[str, ...] = (),
        schemes: tuple[str, ...] = (),
        prices: Path | None = None,
        installed: Mapping[str, InstalledEngine] | None = None,
    ) -> None:
        self.model, self.traffic, self.slo, self.objective = model, traffic, slo, objective
        self.max_model_len, self.os, self.driver, self.prices = max_model_len, os, driver, prices
        self.engines = tuple(query.engine(name).id for name in engines)
        named = [query.scheme(name) for name in schemes]
        self.schemes = tuple(s.id for s in named if s.kind == "weights")
        self.kv_schemes = tuple(s.id for s in named if s.kind == "kv_cache")
        self.mix: Mix = mix_of(traffic)
        self.at: Load = slo.at or lightest(traffic)
        self.doubts = doubts(model)
        self.installed = installed or {}
        self.stored = stored_schemes(model)
        self.active = active_parameters(model)
        self._weights: dict[tuple[str | None, Parallelism], dict[str, float]] = {}

    @property
    def doubtful(self) -> bool:
        """True where the arithmetic may be about another kind of model: ranges widen, and only weights refuse."""
        return bool(self.doubts)

    def weights(self, scheme: SchemeSpec | None, split: Parallelism) -> dict[str, float]:
        """Bytes of the weights on the fullest GPU, by class."""
        key = (scheme.id if scheme else None, split)
        if key not in self._weights:
            found = weights_by_class(self.model, scheme, split)
            self._weights[key] = found or {"other": self.model.weight_bytes / split.num_gpus}
        return self._weights[key]


class Limits(NamedTuple):
    """How many GPUs: of one replica at most, in all (``None``: as many as it takes). ``brief``: many kinds of GPU are
    compared, so that variants which cannot come first are not worked out.
    """

    replica: int
    given: int | None = None
    brief: bool = False


class Found(NamedTuple):
    """One way of serving the model on one kind of GPU. ``users`` is the capacity of a replica, 0 where it keeps no
    promise; ``binding`` is what stops the next user; ``gpus_given`` what may be used (``None``: any number).
    """

    gpu: GpuSpec
    engine: EngineFacts
    scheme: SchemeSpec
    state: State
    split: Parallelism
    kv: SchemeSpec | None
    memory: MemoryPlan
    steady: Steady
    slots: int
    users: int
    binding: str
    gpus_given: int | None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``fp8 · vllm · 2x l20``."""
        count = self.split.num_gpus
        kv = f" · {self.kv.id}" if self.kv else ""
        return f"{self.scheme.id} · {self.engine.id}{kv} · {f'{count}x ' if count > 1 else ''}{self.gpu.id}"

    def replicas(self, load: Load) -> int:
        """Replicas that serve this load while each stays within its capacity; 1 where nothing is known to be kept."""
        if not self.users:
            return 1
        if load.concurrency is not None:
            return math.ceil(load.concurrency / self.users)
        rate = self.steady.at(self.users).request_rate_per_s
        return replicas_for(load.rate_per_s or 0.0, rate, headroom=HEADROOM)

    def users_at(self, load: Load) -> float:
        """Users of one replica at this load, spread evenly; for a rate, those that make it (Little's law)."""
        replicas = self.replicas(load)
        if load.concurrency is not None:
            return load.concurrency / replicas
        wanted = (load.rate_per_s or 0.0) / replicas
        low, high = 0.0, float(max(1, self.users or self.slots))
        for _ in range(20):  # more users, more requests a second: bisection
            middle = (low + high) / 2
            low, high = (low, middle) if self._rate(middle) > wanted else (middle, high)
        return high

    def _rate(self, users: float) -> float:
        """Requests a second of that many users; below one, a single user who pauses."""
        return self.steady.at(users).request_rate_per_s * min(1.0, users)

    def replicas_kept(self, slo: SLO, at: Load) -> int:
        """Replicas that the SLO needs: for the load at which it is asked for, and, where no load is named, for the
        rates that it demands of the whole service.
        """
        replicas = self.replicas(at)
        if slo.at is not None:
            return replicas
        speed = self.steady.at(self.users or 1)
        for limit in slo.limits:
            if limit.metric == "output_tokens_per_s":
                replicas = max(replicas, math.ceil(limit.limit / (speed.request_rate_per_s * self.steady.answers)))
            elif limit.metric == "request_rate":
                replicas = max(replicas, math.ceil(limit.limit / speed.request_rate_per_s))
        return replicas

    def keeps(self, slo: SLO, at: Load) -> bool:
        """True where the SLO is predicted to hold on the GPUs given."""
        if not self.users:
            return False
        return self.gpus_given is None or self.replicas_kept(slo, at) * self.split.num_gpus <= self.gpus_given


def doubts(model: ModelSpec) -> tuple[str, ...]:
    """Why the memory and speed arithmetic may not be about this model: its architecture is not one that was read."""
    worth_telling = {"config.architecture": ("warning", "error"), "config.layer_types": ("note", "warning")}
    found = [check.message for check in model.health if check.severity in worth_telling.get(check.id, ())]
    if model.weight_bytes and not model.weight_classes:
        found.append("no tensor of the checkpoint has a name that is known: only the sum of their bytes is")
    return tuple(found)
