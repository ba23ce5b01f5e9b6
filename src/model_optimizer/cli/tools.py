"""``model-optimize tools``: the environments of engines and converters."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.prompt import Confirm
from rich.table import Table

from model_optimizer import api
from model_optimizer.cli.progress import ProgressView
from model_optimizer.host.toolenv import ToolStatus
from model_optimizer.units import format_bytes, format_seconds


def list_command(*, json: bool) -> None:
    """Every tool with its purpose, version and size."""
    tools = api.toolbox(ProgressView(quiet=True)).list()
    if json:
        print(api.as_json(tools))
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2))
    for column in ("tool", "version", "size", "purpose"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for tool in tools:
        size = format_bytes(tool.size_bytes) if tool.size_bytes else f"[dim]~{format_bytes(tool.installed_bytes)}[/]"
        version = escape(tool.version or "") if tool.installed else "[dim]not installed[/]"
        table.add_row(tool.name, version + (" (yours)" if tool.configured else ""), size, escape(tool.purpose))
    Console(highlight=False).print(table)


def install_command(names: list[str]) -> None:
    """Build each; what exists is kept."""
    with ProgressView() as view:
        box = api.toolbox(view)
        for name in names:
            env = box.install(name)
            view.console.print(f"[green]✓[/] {name} {escape(env.version)}  {format_bytes(env.size_bytes)}")


def verify_command(names: list[str]) -> None:
    """Import, version, one small computation."""
    with ProgressView() as view:
        box = api.toolbox(view)
        for name in names or [tool.name for tool in box.list() if tool.installed]:
            status = box.verify(name)
            view.console.print(f"[green]✓[/] {name} {escape(status.version or '')} works")


def remove_command(names: list[str]) -> None:
    """Delete, and say what was freed."""
    console = Console(stderr=True, highlight=False)
    for name in names:
        freed = api.toolbox(ProgressView(quiet=True)).remove(name)
        console.print(f"{name}: {format_bytes(freed)} freed" if freed else f"{name}: was not installed")


def may_install(view: ProgressView, tool: ToolStatus) -> bool:
    """Ask before something large is fetched that nobody asked for by name; yes where nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    view.pause()
    try:
        return Confirm.ask(
            f"{tool.name} is needed ({tool.purpose}): about {format_bytes(tool.download_bytes)} to fetch, "
            f"{format_seconds(tool.build_time_s)}. Install it?",
            console=view.console,
            default=True,
        )
    finally:
        view.resume()
