"""What GPUs and electricity cost: rented prices with their dates, the user's own first."""

from __future__ import annotations

from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from model_optimizer.kb.find import gpu
from model_optimizer.kb.load import data_folder, read_yaml, to_record, wrong
from model_optimizer.kb.sources import IsoDate, SourceEntry, Sources
from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import Electricity, GpuPrice, Source, Sourced


class _Price(Record):
    gpu: str
    provider: str = "yours"
    usd_per_hour: Annotated[float, Field(gt=0, lt=1000)]
    tier: Literal["on-demand", "spot", "reserved", "serverless", "own"] = "on-demand"
    machine: Annotated[int, Field(gt=0)] = 1
    date: IsoDate | None = None
    source: str | None = None
    note: str = ""


class _Electricity(Record):
    usd_per_kwh: Annotated[float, Field(gt=0, lt=10)]
    pue: Annotated[float, Field(ge=1, lt=5)] = 1.0
    region: str = "yours"
    date: IsoDate | None = None
    source: str | None = None


class _File(Record):
    sources: dict[str, SourceEntry] = {}
    prices: tuple[_Price, ...] = ()
    electricity: _Electricity | None = None


def _source(content: _File, file: Traversable, source_id: str | None, at: tuple[str | int, ...]) -> Source | None:
    return Sources(file, content.sources).find([source_id], at)[0] if source_id else None


def _prices(content: _File, file: Traversable, own: bool) -> list[GpuPrice]:
    found = []
    for index, entry in enumerate(content.prices):
        at = ("prices", index)
        source = _source(content, file, entry.source, (*at, "source"))
        if source is None and not own:
            raise wrong(file, at, "a price needs a source")
        found.append(
            GpuPrice(
                gpu=gpu(entry.gpu).id,
                provider=entry.provider,
                usd_per_hour=entry.usd_per_hour,
                tier="own" if own and source is None else entry.tier,
                gpus_per_machine=entry.machine,
                date=entry.date or (source.read if source else ""),
                status=source.status if source else "measured",
                source=source,
                note=entry.note,
            )
        )
    return found


@cache
def _shipped() -> tuple[tuple[GpuPrice, ...], Electricity]:
    file = data_folder() / "prices.yaml"
    content = to_record(_File, read_yaml(file), file)
    if content.electricity is None:
        raise wrong(file, (), "electricity is missing")
    source = _source(content, file, content.electricity.source, ("electricity", "source"))
    return tuple(_prices(content, file, own=False)), _electricity(content.electricity, source)


def _electricity(entry: _Electricity, source: Source | None) -> Electricity:
    return Electricity(
        usd_per_kwh=entry.usd_per_kwh,
        pue=entry.pue,
        region=entry.region,
        date=entry.date or (source.read if source else ""),
        status=source.status if source else "measured",
        source=source,
    )


def prices(name: str, own: Path | None = None) -> tuple[GpuPrice, ...]:
    """Prices per hour of one GPU of that name: those in the user's file ``own`` first, then shipped ones by price.

    Raises ``UnknownName`` for the GPU, ``SpecInvalid`` with file and line for a mistake in ``own``.
    """
    wanted = gpu(name).id
    mine = _prices(to_record(_File, read_yaml(own), own), own, own=True) if own is not None else []
    shipped = sorted(_shipped()[0], key=lambda price: price.usd_per_hour)
    return tuple(price for price in (*mine, *shipped) if price.gpu == wanted)


def usd_per_hour(name: str, own: Path | None = None) -> Sourced[float] | None:
    """One price per hour to calculate with: the user's own, else the median of what providers ask on demand.

    ``None`` where nobody's price is known. The note says how many providers, and from when.
    """
    known = prices(name, own)
    mine = [price for price in known if price.tier == "own"]
    if mine:
        return Sourced(value=mine[0].usd_per_hour, sources=(), status="measured", note="your price")
    if not known:
        return None
    asked = [price for price in known if price.tier == "on-demand"] or list(known)
    dates = sorted({price.date for price in asked})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return Sourced(
        value=median(price.usd_per_hour for price in asked),
        sources=tuple(dict.fromkeys(price.source.id for price in asked if price.source)),
        status="community",
        basis="derived",
        note=f"median of {len(asked)} offers, {when}",
    )


def electricity(own: Path | None = None) -> Electricity:
    """Price of energy: the user's own, else the shipped default. Raises ``SpecInvalid`` for a mistake in ``own``."""
    if own is not None:
        content = to_record(_File, read_yaml(own), own)
        if content.electricity is not None:
            return _electricity(content.electricity, None)
    return _shipped()[1]
