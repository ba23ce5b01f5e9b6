"""Questions to the planner, in one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_optimizer.kb import query
from model_optimizer.planning.fleet import plan_fleet
from model_optimizer.planning.options import Answer, options_on
from model_optimizer.planning.question import Limits, Question
from model_optimizer.records.fleet import Fleet, Option
from model_optimizer.records.knowledge import OsName
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.workload import SLO, Load, Objective, TrafficProfile


def traffic(name: str = "founding-mix", *loads: int | str) -> TrafficProfile:
    """A named profile, under other loads where some are given."""
    profile = query.traffic(name)
    if not loads:
        return profile
    return profile.model_copy(update={"loads": tuple(Load.model_validate(load) for load in loads)})


def plan(
    model: ModelSpec,
    gpu: str,
    slo: dict[str, Any] | None = None,
    *,
    of: TrafficProfile | None = None,
    objective: Objective = "goodput",
    engines: tuple[str, ...] = (),
    schemes: tuple[str, ...] = (),
    os: OsName = "linux",
    driver: str | None = None,
    prices: Path | None = None,
    explain: bool = False,
) -> Fleet:
    """``plan_fleet`` with the usual rest; the context is the traffic's longest request."""
    profile = of or traffic()
    return plan_fleet(
        model,
        gpu,
        profile,
        SLO.model_validate(slo or {}),
        objective=objective,
        max_model_len=profile.longest_sequence,
        os=os,
        driver=driver,
        engines=engines,
        schemes=schemes,
        prices=prices,
        request={"model": (model.source, "flag")} if explain else None,
    )


def routes(model: ModelSpec, gpu: str, engine: str, scheme: str, *, count: int = 1, **more: Any) -> Answer:
    """What becomes of one scheme in one engine on so many GPUs, without any promise."""
    profile = traffic()
    ask = Question(
        model, profile, SLO(), objective="goodput", max_model_len=profile.longest_sequence,
        engines=(engine,), schemes=(scheme,), **more,
    )  # fmt: skip
    return options_on(ask, query.gpu(gpu), Limits(count, count))


def by_scheme(fleet: Fleet) -> dict[tuple[str, str], Option]:
    """The options of a fleet by scheme and engine, those with a KV cache of their own left out."""
    return {(o.deployment.scheme, o.deployment.engine): o for o in fleet.options if o.deployment.kv_dtype == "auto"}
