"""What each command does: call one function of ``api``, show what it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from model_optimizer import api
from model_optimizer.cli import show
from model_optimizer.cli.progress import ProgressView
from model_optimizer.cli.tools import may_install
from model_optimizer.kb.traffic import traffic_profiles
from model_optimizer.records.run import RunSpec
from model_optimizer.records.workload import SLO
from model_optimizer.request import parse_slo, parse_traffic, resolve
from model_optimizer.store.objects import write_atomically

EXIT_NOTHING_MEETS = 1


def run_command(
    model: str | None,
    flags: Mapping[str, Any],
    *,
    demo: bool,
    output_dir: Path | None,
    remeasure: bool,
    json: bool,
) -> int:
    """Exit 0 where a winner meets the SLO, 1 where none does."""
    spec = request(model, flags, demo=demo)
    with ProgressView(quiet=json) as view:
        ask = None if demo or json else partial(may_install, view)
        manifest = api.run(spec, show=view, output_dir=output_dir, remeasure=remeasure, ask=ask)
    if json:
        print(manifest.to_json().decode())
    else:
        console = Console(highlight=False)
        show.show_summary(console, manifest)
        folder = output_dir or api.home() / "runs" / manifest.run_id
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    return 0 if manifest.winner else EXIT_NOTHING_MEETS


def request(model: str | None, flags: Mapping[str, Any], *, demo: bool) -> RunSpec:
    """Arguments and options as a request; a ``.yaml`` argument is a request file."""
    given = {key: value for key, value in flags.items() if value is not None and value != []}
    if "slo" in given:
        given["slo"] = parse_slo(given["slo"])
    if "traffic" in given:
        given["traffic"] = parse_traffic(given["traffic"])
    file = Path(model) if model and model.endswith((".yaml", ".yml")) else None
    if model and file is None:
        given["model"] = model
    return resolve(given, file, demo=demo)


def plan_command(model: str | None, flags: Mapping[str, Any], *, demo: bool, json: bool) -> None:
    """Candidates and refusals."""
    with ProgressView(quiet=json) as view:
        described, host, plan = api.plan(request(model, flags, demo=demo), show=view)
    if json:
        print(plan.to_json().decode())
    else:
        show.show_plan(Console(highlight=False), described, host, plan)


def inspect_command(model: str, *, json: bool) -> int:
    """Exit 2 where the checkpoint cannot be used."""
    with ProgressView(quiet=json) as view:
        described = api.inspect(model, show=view)
    if json:
        print(described.to_json().decode())
    else:
        show.show_model(Console(highlight=False), described)
    return 2 if any(check.severity == "error" for check in described.health) else 0


def status_command(run: str | None, *, all_runs: bool, json: bool) -> None:
    """One run, or all."""
    console = Console(highlight=False)
    if all_runs:
        found = api.runs()
        print(api.as_json(found)) if json else show.show_runs(console, list(found))
        return
    manifest = api.status(run)
    print(manifest.to_json().decode()) if json else show.show_status(console, manifest)


def report_command(run: str | None, *, to: Path | None, json: bool) -> None:
    """The page, or with ``--json`` the same as data."""
    if json:
        print(api.status(run).to_json().decode())
    else:
        print(api.report(run, to))


def bench_command(
    url: str,
    traffic: str | None,
    slo: Sequence[str],
    *,
    model: str | None,
    key_env: str,
    save: Path | None,
    json: bool,
) -> int:
    """Exit 1 where the SLO is missed."""
    profile = resolve({"model": url, "traffic": parse_traffic(traffic or "founding-mix")}).traffic
    limits = SLO.model_validate(resolve({"model": url, "slo": parse_slo(slo)}).slo)
    with ProgressView(quiet=json) as view:
        run, checks = api.bench(url, profile, limits, show=view, model=model, api_key=os.environ.get(key_env))
    if save is not None:
        write_atomically(save, api.as_json({"results": run.results, "checks": checks, "traces": run.traces}).encode())
    if json:
        print(api.as_json({"results": run.results, "checks": checks}))
    else:
        show.show_loads(Console(highlight=False), run.results, checks)
    return EXIT_NOTHING_MEETS if any(check.ok is False for check in checks) else 0


def traffic_command(*, json: bool) -> None:
    """The named profiles."""
    if json:
        print(orjson.dumps([p.model_dump(mode="json") for p in traffic_profiles()]).decode())
        return
    console = Console(highlight=False)
    for profile in traffic_profiles():
        mix = ", ".join(f"{c.weight:.0%} of {c.prompt_tokens}" for c in profile.lengths)
        console.print(f"[bold]{profile.id}[/]  {profile.description}")
        console.print(f"  prompts {mix}; loads {', '.join(map(str, profile.loads))}", style="dim")
