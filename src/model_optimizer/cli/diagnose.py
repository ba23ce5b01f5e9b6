"""``model-optimize diagnose``: from a log to its root cause, from a running server to its regime."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
from rich.console import Console
from rich.markup import escape

from model_optimizer import api
from model_optimizer.cli.progress import ProgressView
from model_optimizer.cli.show_live import show_live
from model_optimizer.records.diagnosis import Diagnosis
from model_optimizer.records.workload import SLO
from model_optimizer.request import parse_slo, resolve


def diagnose_command(log: str, *, engine: str | None, facts: Path | None, json: bool) -> int:
    """Exit 0 where a cause was found or nothing is wrong, 1 where the text does not tell."""
    if log == "-":
        found = api.diagnose_text(sys.stdin.buffer, engine=engine, facts=facts)
    else:
        found = api.diagnose_file(log, engine=engine, facts=facts)
    if json:
        print(orjson.dumps(found.contract(), option=orjson.OPT_INDENT_2).decode())
    else:
        show_diagnosis(Console(highlight=False), found)
    return 1 if found.verdict == "unknown" else 0


def diagnose_server_command(url: str, slo: Sequence[str], *, seconds: float, key_env: str, json: bool) -> int:
    """Exit 0 where a regime was found, 1 where the server does not tell enough."""
    limits = SLO.model_validate(resolve({"model": url, "slo": parse_slo(slo)}).slo)
    with ProgressView(quiet=json) as view:
        found = api.diagnose_server(url, show=view, seconds=seconds, slo=limits, api_key=os.environ.get(key_env))
    if json:
        print(found.to_json().decode())
    else:
        show_live(Console(highlight=False), found)
    return 1 if found.regime == "unknown" else 0


def show_diagnosis(console: Console, found: Diagnosis) -> None:
    """Cause, the line that shows it, what to do, how to see that it worked; or what to send."""
    if found.verdict == "none":
        console.print(f"[green]nothing wrong[/] in {found.num_lines} lines")
        return
    for number, finding in enumerate(found.findings[:3]):
        style = "bold red" if number == 0 else "yellow"
        sure = f"[dim]{finding.confidence:.0%} sure  {finding.cause}[/]"
        console.print(f"[{style}]{escape(finding.title)}[/]  {sure}")
        console.print(f"  line {finding.evidence.line}: [dim]{escape(finding.evidence.text.strip())}[/]")
        for step in finding.fix:
            console.print(f"  [green]fix[/]     {escape(step)}")
        for step in finding.verify[:2]:
            console.print(f"  verify  {escape(step)}")
        console.print()
    if found.verdict == "unknown":
        console.print("[yellow]The text does not say what went wrong.[/]")
        if found.first_error is not None:
            console.print(f"  first error, line {found.first_error.line}: {escape(found.first_error.text.strip())}")
    if found.ask_for:
        console.print("To be sure, send:")
        for question in found.ask_for:
            console.print(f"  - {escape(question)}")
