"""``model-optimize doctor``: what is wrong with this machine, and the commands that put it right."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from model_optimizer import api
from model_optimizer.cli.progress import ProgressView
from model_optimizer.errors import HostError, SpecInvalid
from model_optimizer.records.doctor import Examination, HostFinding, ProbedValue
from model_optimizer.render.fix_script import fix_script
from model_optimizer.store.objects import write_atomically

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_WIDTH = 80


def doctor_command(
    *,
    json: bool,
    strict: bool,
    fix_to: Path | None,
    survey_to: Path | None,
    survey_from: Path | None,
    force: bool = False,
    measure: bool = False,
) -> int:
    """Exit 0 where nothing stands in the way, 3 on an error, with ``strict`` 1 on a warning."""
    for target in (fix_to, survey_to):
        if target is not None and target.exists() and not force:
            raise SpecInvalid(
                f"{target} exists already",
                cause="doctor does not overwrite files by itself",
                fix="name another file, or say --force",
            )
    if measure and survey_from is not None:
        raise SpecInvalid(
            "another machine's file cannot be measured",
            cause="--measure runs here, --from examines a file from elsewhere",
            fix="say --measure on that machine",
        )
    survey, found = api.doctor(survey_from)
    if measure:
        with ProgressView(quiet=json) as view:
            found = found.model_copy(update={"measured": api.micro_probe(show=view)})
    if survey_to is not None:
        write_atomically(survey_to, survey.model_dump_json(indent=2).encode())
    if fix_to is not None:
        write_atomically(fix_to, fix_script(found).encode())
    if json:
        print(api.as_json(found))
    else:
        console = Console(highlight=False)
        show_examination(Console(highlight=False, width=min(console.width, _WIDTH)), found)
        for target, what in ((survey_to, "what was read"), (fix_to, "the fixes, to read before running")):
            if target is not None:
                console.print(Text(f"{target}: {what}"), soft_wrap=True)
    if found.severity == "error":
        return HostError.exit_code
    return 1 if strict and found.severity == "warning" else 0


def show_examination(console: Console, found: Examination) -> None:
    """The machine, findings worst first, what is merely worth knowing, what works."""
    console.print(Text(found.host, style="bold"))
    console.print()
    grave = [finding for finding in found.findings if finding.severity in ("error", "warning")]
    for finding in grave:
        _show(console, finding)
    notes = [finding for finding in found.findings if finding.severity == "info"]
    if notes:
        console.print(Text("Worth knowing", style="bold"))
        for finding in notes:
            line = Text.assemble(finding.title, ("  " + finding.id, "dim"))
            _row(console, "-", line)
        console.print()
    if found.in_order:
        console.print(Text("In order", style="bold"))
        for topic in found.in_order:
            _row(console, "-", Text(topic))
        console.print()
    if found.measured:
        console.print(Text("Measured", style="bold"))
        for value in found.measured:
            _row(console, "-", _rate(value))
        console.print()
    console.print(Text("Works here", style="bold"))
    for way in found.works:
        _row(console, "-", Text(way))
    console.print()
    console.print(_sum(found))


def _rate(value: ProbedValue) -> Text:
    """``memory, all cores  18.1 GB/s  86 % of 21 GB/s  how it was measured``."""
    share = ""
    if value.share is not None and value.expected is not None:
        share = f"  {value.share:.0%} of {_scaled(value.expected, value.unit)}"
    told = Text.assemble(value.name, f"  {_scaled(value.measured, value.unit)}", share, ("  " + value.how, "dim"))
    if value.note:
        told.append(f"  {value.note}", style="yellow")
    return told


def _scaled(value: float, unit: str) -> str:
    """``1.69e10``, ``B/s`` → ``16.9 GB/s``: decimal prefixes, as rates of hardware are given."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _show(console: Console, finding: HostFinding) -> None:
    mark, name = (finding.severity, _STYLES[finding.severity]), ("  " + finding.id, "dim")
    console.print(Text.assemble(mark, "  ", (finding.title, "bold"), name))
    for seen in finding.evidence[:4]:
        _row(console, "seen", Text(f"{seen.source}: {seen.text}", style="dim"))
    _row(console, "cause", Text(finding.cause))
    for at, step in enumerate(finding.fix):
        words = step.startswith("#")
        text = Text(step.lstrip("# ")) if words else Text(f"$ {step}", style="green")
        _row(console, "fix" if at == 0 else "", text)
    for at, step in enumerate(finding.verify):
        _row(console, "verify" if at == 0 else "", Text(f"$ {step}"))
    if finding.fact:
        _row(console, "see", Text(finding.fact, style="dim"))
    console.print()


def _row(console: Console, name: str, text: Text) -> None:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", width=1 if name == "-" else 8, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(name if name == "-" else f"  {name}", text)
    console.print(grid)


def _sum(found: Examination) -> Text:
    counts = {word: sum(f.severity == word for f in found.findings) for word in ("error", "warning")}
    told = [f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items() if n]
    if not told:
        return Text(f"Nothing stands in the way ({found.num_probes} sources read).", style="green")
    style = "red" if counts["error"] else "yellow"
    return Text(f"{', '.join(told)} ({found.num_probes} sources read; nothing was changed).", style=style)
