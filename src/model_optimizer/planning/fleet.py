"""The buyer's question and the owner's: over one GPU or all of them, what serves this traffic best."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import NothingFits, SpecInvalid
from model_optimizer.kb import query
from model_optimizer.planning.choose import Ranked, Rates, option_of, ranked, rates_of, worst_margin
from model_optimizer.planning.devices import gpus_in_a_machine
from model_optimizer.planning.explain import explain, request_section
from model_optimizer.planning.levers import levers
from model_optimizer.planning.options import options_on
from model_optimizer.planning.promises import check_slo, heaviest
from model_optimizer.planning.question import Found, Limits, Question
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.fleet import Fleet, Option, Section
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import InstalledEngine, OsName, Source
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.workload import SLO, Objective, TrafficProfile

OF_EACH_GPU = 3
"""Options of each GPU that a comparison of many keeps."""


class Targets(NamedTuple):
    """What ``--gpu`` means: the kinds of GPU, and how many there are (``None``: as many as it takes)."""

    gpus: tuple[GpuSpec, ...]
    given: int | None

    def limits(self, gpu: GpuSpec) -> Limits:
        """``l20``: replicas of one GPU each. ``4x l20``: what four can do. ``all``: what a machine holds."""
        if len(self.gpus) > 1:
            return Limits(gpus_in_a_machine(gpu), brief=True)
        return Limits(self.given or 1, self.given)


def plan_fleet(
    model: ModelSpec,
    gpu: str,
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
    request: Mapping[str, tuple[str, str]] | None = None,
    installed: Mapping[str, InstalledEngine] | None = None,
) -> Fleet:
    """Options on ``gpu``: a name (replicas of one), ``4x NAME`` (what four can do), or ``all`` (the best of each).

    ``request`` (name → value and origin) asks for the arithmetic of the best option; ``installed`` is what engines of
    this machine say about themselves, which wins over the tables. Where nothing keeps the SLO the
    result says what comes nearest and what would help. Raises ``UnknownName`` for names, ``SpecInvalid`` for limits
    that contradict each other, ``NothingFits`` where no route is open on any GPU.
    """
    check_slo(slo)
    targets = targets_of(gpu)
    ask = Question(
        model, traffic, slo, objective=objective, max_model_len=max_model_len, os=os, driver=driver,
        engines=engines, schemes=schemes, prices=prices, installed=installed,
    )  # fmt: skip
    refused = list(_stored_refusal(ask))
    best, vetoed, considered = _over_gpus(ask, targets, refused)
    if not best and not vetoed:
        raise _nothing_fits(ask, gpu, targets, refused)
    keeps = any(one.standing[0] for one, _ in best)
    near = None if keeps else _nearest(ask, [(one.found, rates) for one, rates in best], vetoed)
    shown = (best[0][0].found, best[0][1]) if best else near
    return Fleet(
        model=model.source,
        gpu=gpu,
        traffic=traffic,
        slo=slo,
        objective=objective,
        at=str(ask.at),
        load=str(heaviest(traffic)),
        options=tuple(option_of(ask, one, rates) for one, rates in best),
        refused=tuple(refused),
        considered=considered,
        nearest=None if near is None else _as_option(ask, *near),
        levers=() if keeps else levers(ask, targets.gpus, targets.limits(targets.gpus[0]), near[0] if near else None),
        notes=_notes(ask),
        sources=_sources(ask, [one.found for one, _ in best[:1]]),
        explanation=_explanation(ask, shown, request),
    )


def best_of_each_gpu(fleet: Fleet) -> tuple[Option, ...]:
    """The best option of each kind of GPU, in the fleet's order: what a buyer compares."""
    best: dict[str, Option] = {}
    for option in fleet.options:
        best.setdefault(option.deployment.gpu, option)
    return tuple(best.values())


def targets_of(gpu: str) -> Targets:
    """``l20`` → as many as it takes, one a replica; ``4x l20`` → four at most; ``all`` → every kind.

    Raises ``UnknownName`` for the GPU, ``SpecInvalid`` for the count.
    """
    if gpu.strip().lower() == "all":
        return Targets(query.gpus(), None)
    counted = re.match(r"^\s*(\d+)\s*[x×*]\s*(.+)$", gpu, re.IGNORECASE)
    count = int(counted[1]) if counted else None
    if count is not None and not 1 <= count <= 1024:
        raise SpecInvalid(
            f"--gpu {gpu!r}: {count} GPUs", cause="the count is out of range", fix="write for example 4x l20"
        )
    return Targets((query.gpu(counted[2] if counted else gpu),), count)


def _over_gpus(
    ask: Question, targets: Targets, refused: list[Refusal]
) -> tuple[list[tuple[Ranked, Rates]], list[tuple[Found, Rates]], int]:
    """The options to show, best first, those that only the roofline refuses, and how many were worked out in all."""
    energy = query.electricity(ask.prices)
    many = len(targets.gpus) > 1
    order: list[tuple[int, Ranked, Rates]] = []
    vetoed: list[tuple[Found, Rates]] = []
    considered = 0
    for gpu in targets.gpus:
        answer = options_on(ask, gpu, targets.limits(gpu))
        rates = rates_of(ask, gpu.id, energy)
        refused += answer.refused
        vetoed += [(found, rates) for found in answer.vetoed]
        considered += len(answer.found) + len(answer.refused)
        of_this = ranked(ask, answer.found, rates)
        order += [(place, one, rates) for place, one in enumerate(of_this[: OF_EACH_GPU if many else None])]
    if many:
        order.sort(key=lambda row: (-row[0], row[1].standing, row[1].score), reverse=True)
    return [(one, rates) for _, one, rates in order], vetoed, considered


def _as_option(ask: Question, found: Found, rates: Rates) -> Option:
    return option_of(ask, Ranked(found, (False,), worst_margin(ask, found)), rates)


def _nearest(
    ask: Question, fitting: Sequence[tuple[Found, Rates]], vetoed: Sequence[tuple[Found, Rates]]
) -> tuple[Found, Rates] | None:
    """The find whose tightest limit is missed by least."""
    return max((*fitting, *vetoed), key=lambda pair: worst_margin(ask, pair[0]), default=None)


def _explanation(
    ask: Question, shown: tuple[Found, Rates] | None, request: Mapping[str, tuple[str, str]] | None
) -> tuple[Section, ...]:
    if request is None or shown is None:
        return ()
    return (request_section(request), *explain(ask, *shown))


def _stored_refusal(ask: Question) -> list[Refusal]:
    """One line for all schemes that a quantized checkpoint rules out, instead of one each."""
    if ask.stored is None:
        return []
    method = ask.model.quantized_as or ask.model.weight_dtype
    if not ask.stored:
        reason = (
            f"the knowledge base does not know the quantization method {method!r}: nothing can be said about engines"
        )
        return [Refusal(route="this checkpoint", code="FORMAT_UNKNOWN", reason=reason, fix=_UNQUANTIZED_FIX)]
    asked = [scheme for scheme in ask.schemes if scheme not in ask.stored]
    return [
        Refusal(
            route=f"{', '.join(asked) or 'other schemes'} of this checkpoint",
            code="SOURCE_ALREADY_QUANTIZED",
            reason=f"its weights are {method} already ({', '.join(ask.stored)}): another round adds loss to loss",
            fix=_UNQUANTIZED_FIX,
            source="the checkpoint's headers",
        )
    ]


_UNQUANTIZED_FIX = "start from the unquantized checkpoint"


def _nothing_fits(ask: Question, gpu: str, targets: Targets, refused: Sequence[Refusal]) -> NothingFits:
    ways = levers(ask, targets.gpus, targets.limits(targets.gpus[0]), None) if ask.stored != () else ()
    helps = "; or ".join(f"{lever.change} ({lever.result})" for lever in ways[:2])
    return NothingFits(
        f"nothing can serve {ask.model.source} on {gpu}",
        cause="every route was refused",
        fix=helps or "a smaller scheme or model, more GPUs (4x NAME), or a GPU with more memory; --gpu all shows which",
        evidence=[f"{r.route}: {r.code}: {r.reason}" for r in _telling(refused)],
    )


def _telling(refused: Sequence[Refusal], limit: int = 12) -> list[Refusal]:
    """The refusals that are about this model first: memory and roofline before formats."""
    order = ("WEIGHTS_DO_NOT_FIT", "KV_CACHE_DOES_NOT_FIT", "ROOFLINE_ABOVE_SLO", "SOURCE_ALREADY_QUANTIZED")
    return sorted(refused, key=lambda r: order.index(r.code) if r.code in order else len(order))[:limit]


def _notes(ask: Question) -> tuple[str, ...]:
    wide = "memory beyond the weights and all speeds are shown with a wide range, and only the weights refuse a GPU"
    return tuple(f"{doubt}: {wide}" for doubt in ask.doubts)


def _sources(ask: Question, shown: Sequence[Found]) -> tuple[Source, ...]:
    """Where the facts about the best option's GPU and the prices are from."""
    found: dict[str, Source] = {}
    for one in shown:
        for source in (*one.gpu.sources, *one.state.sources):
            found.setdefault(source.title, source)
        for price in query.prices(one.gpu.id, ask.prices):
            if price.source is not None:
                found.setdefault(price.source.title, price.source)
    return tuple(found.values())
