"""The command line. Heavy imports wait inside the commands: ``--help`` must stay quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from model_optimizer.cli.screen import error_screen

app = typer.Typer(
    name="model-optimize",
    help="From a checkpoint to a validated, tuned inference service, with the evidence for every claim.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
tools_app = typer.Typer(help="The engines' and converters' own environments.", no_args_is_help=True)
app.add_typer(tools_app, name="tools")

Json = Annotated[bool, typer.Option("--json", help="Print the record itself.")]
Slo = Annotated[list[str] | None, typer.Option(help="A limit, e.g. ttft_p99=150ms, tpot_p95=40ms, error_rate=0.1%.")]
Traffic = Annotated[str | None, typer.Option(help="A named profile (model-optimize traffic) or a YAML file.")]
Gpu = Annotated[str | None, typer.Option(help="auto (what is here), cpu, a GPU's name, 4x NAME, or all (plan only).")]
Engine = Annotated[list[str] | None, typer.Option(help="Only this engine; may be repeated.")]
Scheme = Annotated[list[str] | None, typer.Option(help="Only this scheme, e.g. q4_k_m; may be repeated.")]


@app.command()
def run(
    model: Annotated[str | None, typer.Argument(help="A folder, a .gguf file, a hub id, or a request file.")] = None,
    demo: Annotated[bool, typer.Option(help="A real small model on this machine's CPU, in minutes.")] = False,
    gpu: Gpu = None,
    traffic: Traffic = None,
    slo: Slo = None,
    engine: Engine = None,
    scheme: Scheme = None,
    output_dir: Annotated[Path | None, typer.Option(help="Copy report and winner here.")] = None,
    remeasure: Annotated[bool, typer.Option(help="Take the measurements again.")] = False,
    json: Json = False,
) -> None:
    """Checkpoint in, measured winner out. The same line resumes.

    Inspect, plan, measure the baseline, build, validate, load-test, choose, report.
    """
    from model_optimizer.cli.commands import run_command

    flags = {"gpu": gpu, "traffic": traffic, "slo": slo, "engines": engine, "schemes": scheme}
    raise typer.Exit(run_command(model, flags, demo=demo, output_dir=output_dir, remeasure=remeasure, json=json))


@app.command()
def plan(
    model: Annotated[str | None, typer.Argument(help="A folder, a .gguf file, a hub id, or a request file.")] = None,
    demo: Annotated[bool, typer.Option(help="The demo model.")] = False,
    gpu: Gpu = None,
    traffic: Traffic = None,
    slo: Slo = None,
    engine: Engine = None,
    scheme: Scheme = None,
    objective: Annotated[str | None, typer.Option(help="goodput, latency, memory, quality or cost.")] = None,
    load: Annotated[list[str] | None, typer.Option(help="Users at once (16) or a rate (4/s); may be repeated.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Context of a sequence, in tokens.")] = None,
    explain: Annotated[bool, typer.Option(help="The arithmetic of the best option, and every refusal.")] = False,
    prices: Annotated[Path | None, typer.Option(help="Your prices (YAML, as in the knowledge base).")] = None,
    os: Annotated[str, typer.Option(help="linux, windows, wsl2 or macos.")] = "linux",
    driver: Annotated[str | None, typer.Option(help="NVIDIA driver version there, e.g. 580.65.06.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the comparison as one self-contained page.")] = None,
    json: Json = False,
) -> None:
    """What could run where, why not, how fast about, at what cost. Starts nothing, needs no GPU."""
    from model_optimizer.cli.plan import plan_command

    flags = {
        "gpu": gpu, "traffic": traffic, "slo": slo, "engines": engine, "schemes": scheme, "objective": objective,
        "max_model_len": max_model_len,
    }  # fmt: skip
    code = plan_command(
        model, flags, demo=demo, json=json, loads=load or [], explain=explain, prices=prices, os=os, driver=driver,
        html=html,
    )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file, a hub id, or demo.")], json: Json = False
) -> None:
    """What a checkpoint is, from its headers alone."""
    from model_optimizer.cli.commands import inspect_command

    raise typer.Exit(inspect_command(model, json=json))


@app.command()
def status(
    run: Annotated[str | None, typer.Argument(help="A run, or part of its name; default: the latest.")] = None,
    all: Annotated[bool, typer.Option("--all", help="List all runs.")] = False,
    json: Json = False,
) -> None:
    """What ran, what was remembered, what came out."""
    from model_optimizer.cli.commands import status_command

    status_command(run, all_runs=all, json=json)


@app.command()
def report(
    run: Annotated[str | None, typer.Argument(help="A run, or part of its name; default: the latest.")] = None,
    to: Annotated[Path | None, typer.Option(help="Write the page here.")] = None,
    json: Json = False,
) -> None:
    """Write the run's page: one self-contained HTML file."""
    from model_optimizer.cli.commands import report_command

    report_command(run, to=to, json=json)


@app.command()
def bench(
    url: Annotated[str, typer.Argument(help="Base URL, e.g. http://127.0.0.1:8000")],
    traffic: Traffic = None,
    slo: Slo = None,
    model: Annotated[
        str | None, typer.Option(help="The served model's name; default: the first that it lists.")
    ] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the key.")] = "OPENAI_API_KEY",
    save: Annotated[Path | None, typer.Option(help="Write results and all request traces here (JSON).")] = None,
    json: Json = False,
) -> None:
    """Load-test any OpenAI-compatible server.

    Latencies, throughput, goodput, errors, and whether to trust them.
    """
    from model_optimizer.cli.commands import bench_command

    raise typer.Exit(bench_command(url, traffic, slo or [], model=model, key_env=api_key_env, save=save, json=json))


@app.command()
def tune(
    model: Annotated[str | None, typer.Argument(help="A folder, a .gguf file, a hub id, or a request file.")] = None,
    demo: Annotated[bool, typer.Option(help="The demo model.")] = False,
    gpu: Gpu = None,
    traffic: Traffic = None,
    slo: Slo = None,
    engine: Engine = None,
    scheme: Scheme = None,
    budget: Annotated[str | None, typer.Option(help="Time for everything, e.g. 20min; default 20 min.")] = None,
    trials: Annotated[int | None, typer.Option(help="Most server starts of the search; default 12.")] = None,
    kind: Annotated[str | None, typer.Option(help="The load's kind: rate (default) or concurrency.")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(help="Search this one (engine's name); may be repeated.")
    ] = None,
    set: Annotated[list[str] | None, typer.Option(help="Fix NAME=VALUE in every trial; may be repeated.")] = None,
    order: Annotated[str | None, typer.Option(help="Repeats that confirm: A default, B winner; default ABBA.")] = None,
    seconds_per_load: Annotated[str | None, typer.Option(help="Window of one load, default 20s.")] = None,
    gate: Annotated[bool, typer.Option(help="Leave out the accuracy gate (weights without meaning).")] = True,
    output_dir: Annotated[Path | None, typer.Option(help="Copy report and winner here.")] = None,
    json: Json = False,
) -> None:
    """The settings with the highest goodput within the SLO, proven.

    Default first, calibrate, simulate, search, confirm against the default in interleaved repeats, stress. Ctrl-C gives
    the best so far; the same line goes on.
    """
    from model_optimizer.cli.tune import tune_command

    flags = {
        "gpu": gpu, "traffic": traffic, "slo": slo, "engines": engine, "schemes": scheme,
        "validate_accuracy": None if gate else False,
    }  # fmt: skip
    told = {
        "wall": budget, "trials": trials, "kind": kind, "parameters": parameter, "order": order,
        "seconds_per_load": seconds_per_load,
    }  # fmt: skip
    code = tune_command(model, flags, demo=demo, tuning=told, fixed=set or [], output_dir=output_dir, json=json)
    raise typer.Exit(code)


@app.command()
def traffic(json: Json = False) -> None:
    """The named traffic profiles."""
    from model_optimizer.cli.commands import traffic_command

    traffic_command(json=json)


@app.command()
def gpus(
    names: Annotated[list[str] | None, typer.Argument(help="A GPU, as drivers print it or people type it.")] = None,
    compare: Annotated[bool, typer.Option(help="Side by side.")] = False,
    json: Json = False,
) -> None:
    """The GPUs that are known, each fact with its source."""
    from model_optimizer.cli.knowledge import gpus_command

    gpus_command(names or [], compare=compare, json=json)


@app.command()
def engines(name: Annotated[str | None, typer.Argument(help="An engine.")] = None, json: Json = False) -> None:
    """The engines that are known: where each runs, its flags."""
    from model_optimizer.cli.knowledge import engines_command

    engines_command(name, json=json)


@app.command()
def schemes(
    name: Annotated[str | None, typer.Argument(help="A quantization scheme, e.g. fp8 or q4_k_m.")] = None,
    json: Json = False,
) -> None:
    """The schemes that are known: who runs which, and where."""
    from model_optimizer.cli.knowledge import schemes_command

    schemes_command(name, json=json)


@app.command()
def diagnose(
    log: Annotated[str | None, typer.Argument(help="A log file, a run, or - for standard input.")] = None,
    engine: Annotated[str | None, typer.Option(help="The engine that wrote it, where the text does not say.")] = None,
    facts: Annotated[Path | None, typer.Option(help="YAML: what is known of the host (gpu, driver, os, …).")] = None,
    url: Annotated[str | None, typer.Option(help="A running server instead: what it is busy with.")] = None,
    seconds: Annotated[float, typer.Option(help="With --url: how long to watch it.", min=2, max=600)] = 10,
    slo: Slo = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the key.")] = "OPENAI_API_KEY",
    json: Json = False,
) -> None:
    """From a log, or a running server, to the root cause, or to an honest "not known".

    The line (or the numbers) that show it, the fix, and how to verify. Where that does not tell, what to send.
    """
    from model_optimizer.cli.diagnose import diagnose_command, diagnose_server_command

    if (log is None) == (url is None):
        raise typer.BadParameter("name a log file, a run or - for standard input; or a server with --url")
    if url is not None:
        raise typer.Exit(diagnose_server_command(url, slo or [], seconds=seconds, key_env=api_key_env, json=json))
    assert log is not None  # noqa: S101 (either is given)
    raise typer.Exit(diagnose_command(log, engine=engine, facts=facts, json=json))


@app.command()
def doctor(
    strict: Annotated[bool, typer.Option(help="Exit 1 on a warning, too.")] = False,
    fix_script: Annotated[Path | None, typer.Option(help="Write the fixes here, as a script to read first.")] = None,
    survey: Annotated[Path | None, typer.Option(help="Write what was read here (JSON; secrets are left out).")] = None,
    recorded: Annotated[Path | None, typer.Option("--from", help="Examine such a file, not this machine.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite those files.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Also measure memory, matrix rates, disk (20 s).")] = False,
    json: Json = False,
) -> None:
    """Can this machine do it? What is wrong, why, and the commands that mend it. Changes nothing.

    Exit 0 where nothing stands in the way (warnings included), 3 on an error, with --strict 1 on a warning.
    """
    from model_optimizer.cli.doctor import doctor_command

    code = doctor_command(
        json=json,
        strict=strict,
        fix_to=fix_script,
        survey_to=survey,
        survey_from=recorded,
        force=force,
        measure=measure,
    )
    raise typer.Exit(code)


@tools_app.command("list")
def tools_list(json: Json = False) -> None:
    """Every tool environment: purpose, version, size, installed or not."""
    from model_optimizer.cli.tools import list_command

    list_command(json=json)


@tools_app.command("install")
def tools_install(names: Annotated[list[str], typer.Argument(help="Tools, as in tools list.")]) -> None:
    """Build environments (asks first on a terminal only inside run; here you asked already)."""
    from model_optimizer.cli.tools import install_command

    install_command(names)


@tools_app.command("verify")
def tools_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all that are installed.")] = None,
) -> None:
    """Check that environments work: import, version, one tiny call."""
    from model_optimizer.cli.tools import verify_command

    verify_command(names or [])


@tools_app.command("remove")
def tools_remove(names: Annotated[list[str], typer.Argument(help="Tools, as in tools list.")]) -> None:
    """Delete environments; the next run that needs one builds it again."""
    from model_optimizer.cli.tools import remove_command

    remove_command(names)


def main() -> None:
    """Entry point: one screen for every error, and the exit codes of errors.py."""
    sys.exit(error_screen(app))
