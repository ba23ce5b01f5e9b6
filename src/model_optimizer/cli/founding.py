"""``model-optimize-cli``: the founding articles' one-liner. The same pipeline under its old option names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from model_optimizer.cli.screen import error_screen

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def optimize(
    model_path: Annotated[str, typer.Option(help="A folder, a .gguf file, a hub id, or demo.")],
    output_dir: Annotated[Path, typer.Option(help="Report, manifest and the winner's files go here.")],
    target_gpu: Annotated[str, typer.Option(help="auto (what is here), cpu, or a GPU's name.")] = "auto",
    quantization: Annotated[str | None, typer.Option(help="Only this scheme, e.g. q4_k_m.")] = None,
    validate: Annotated[bool, typer.Option("--validate/--no-validate", help="Compare with the original model.")] = True,
    traffic: Annotated[str | None, typer.Option(help="A named profile or a YAML file.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="A limit, e.g. tpot_p95=40ms.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record itself.")] = False,
) -> None:
    """Optimize one checkpoint for one target: model-optimize run under the names of the founding articles."""
    from model_optimizer.cli.commands import run_command

    flags = {
        "gpu": target_gpu,
        "schemes": [quantization] if quantization else None,
        "traffic": traffic,
        "slo": slo,
        "validate_accuracy": None if validate else False,
    }
    demo = model_path == "demo"
    code = run_command(
        None if demo else model_path, flags, demo=demo, output_dir=output_dir, remeasure=False, json=json
    )
    raise typer.Exit(code)


def main() -> None:
    """Entry point."""
    sys.exit(error_screen(app))
