"""``plan``: what could run where, why not, how fast about, at what cost; over this machine or over any GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import ValidationError
from rich.console import Console

from model_optimizer import api
from model_optimizer.cli import show
from model_optimizer.cli.commands import EXIT_NOTHING_MEETS, request
from model_optimizer.cli.progress import ProgressView
from model_optimizer.cli.show_plan import show_fleet, show_section
from model_optimizer.errors import SpecInvalid
from model_optimizer.kb import query
from model_optimizer.kb.names import nearest
from model_optimizer.planning.explain import request_section, request_values
from model_optimizer.records.knowledge import OsName
from model_optimizer.records.run import RunSpec
from model_optimizer.records.workload import Load
from model_optimizer.render.fleet import fleet_html
from model_optimizer.store.objects import write_atomically

PIPE_WIDTH = 160

HERE = ("auto", "cpu")
"""What ``--gpu`` says for the machine itself; everything else is looked up in the knowledge base."""


def plan_command(
    model: str | None,
    flags: Mapping[str, Any],
    *,
    demo: bool,
    json: bool,
    loads: Sequence[str] = (),
    explain: bool = False,
    prices: Path | None = None,
    os: str = "linux",
    driver: str | None = None,
    html: Path | None = None,
) -> int:
    """Exit 0 where something is predicted to keep the SLO, 1 where nothing is."""
    spec = with_loads(request(model, flags, demo=demo), loads)
    if spec.gpu.strip().lower() in HERE:
        _refuse_for_this_machine({"--html": html, "--prices": prices, "--driver": driver})
        _plan_here(spec, json=json, explain=explain)
        return 0
    with ProgressView(quiet=json) as view:
        described, fleet = api.plan_gpus(
            spec, show=view, os=_os(os), driver=driver, prices=prices, explain=explain or html is not None
        )
    if html is not None:
        facts = {spec.id: spec for spec in query.gpus()}
        write_atomically(html, fleet_html(described, fleet, facts, query.reasons()).encode())
    if json:
        print(fleet.to_json().decode())
    else:
        console = wide_console()
        shown = fleet if explain else fleet.model_copy(update={"explanation": ()})
        show_fleet(console, described, shown, explain=explain)
        if html is not None:
            console.print(f"\npage: {html}", soft_wrap=True)
    return 0 if fleet.feasible else EXIT_NOTHING_MEETS


def wide_console() -> Console:
    """The terminal as it is; a pipe or a file has room for every column."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(console.width, PIPE_WIDTH))


def with_loads(spec: RunSpec, loads: Sequence[str]) -> RunSpec:
    """The request under these loads (``16`` users who wait, ``4/s`` arrivals) instead of the traffic's own."""
    if not loads:
        return spec
    try:
        found = tuple(Load.model_validate(int(text) if text.isdigit() else text) for text in loads)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise SpecInvalid(
            f"--load {' '.join(loads)} is not a load", cause=message, fix="write users at once (16) or a rate (4/s)"
        ) from error
    traffic = spec.traffic.model_copy(update={"loads": found})
    return spec.model_copy(update={"traffic": traffic, "origin": {**spec.origin, "traffic.loads": "flag"}})


def _plan_here(spec: RunSpec, *, json: bool, explain: bool) -> None:
    with ProgressView(quiet=json) as view:
        described, host, plan = api.plan(spec, show=view)
    if json:
        print(plan.to_json().decode())
    else:
        console = Console(highlight=False)
        show.show_plan(console, described, host, plan)
        if explain:
            show_section(console, request_section(request_values(spec)))


def _refuse_for_this_machine(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise SpecInvalid(
            f"{given[0]} is about GPUs that are named",
            cause="--gpu auto and --gpu cpu plan for this machine, which run then measures",
            fix=f"add --gpu NAME or --gpu all, or leave {given[0]} out",
        )


def _os(name: str) -> OsName:
    for known in get_args(OsName):
        if name.strip().lower() == known:
            return cast(OsName, known)
    near = nearest(name, get_args(OsName))
    raise SpecInvalid(
        f"--os {name!r} is not known",
        cause=f"known: {', '.join(get_args(OsName))}",
        fix=f"did you mean {near[0]}?" if near else "take one of these",
    )
