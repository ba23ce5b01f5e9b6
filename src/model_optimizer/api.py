"""What the command line and other programs call: one function a command."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from model_optimizer import __version__
from model_optimizer.diagnosis import diagnose
from model_optimizer.diagnosis.live import classify
from model_optimizer.doctor import examine
from model_optimizer.errors import HostError, SpecInvalid, UnknownName
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from model_optimizer.host.engine_facts import installed_engine as ask_engine
from model_optimizer.host.hub import resolve_model
from model_optimizer.host.microprobe import measure
from model_optimizer.host.probe import probe_host
from model_optimizer.host.serverload import local_server
from model_optimizer.host.survey import take_survey
from model_optimizer.host.toolenv import Toolbox, ToolStatus
from model_optimizer.kb import query
from model_optimizer.kb.causes import causes
from model_optimizer.kb.conditions import conditions
from model_optimizer.kb.live import engine_metrics, regimes
from model_optimizer.kb.load import read_yaml
from model_optimizer.loadgen.drive import LoadRun, Target, run_loads
from model_optimizer.loadgen.http import Address
from model_optimizer.loadgen.scrape import Seen, watch
from model_optimizer.metrics.goodput import judge
from model_optimizer.pipeline import optimize, tune_only
from model_optimizer.planning.explain import request_values
from model_optimizer.planning.fleet import plan_fleet, targets_of
from model_optimizer.planning.promises import check_slo
from model_optimizer.planning.works import works
from model_optimizer.records.base import Emit
from model_optimizer.records.candidate import Plan
from model_optimizer.records.diagnosis import Diagnosis
from model_optimizer.records.doctor import Examination, ProbedValue, Survey
from model_optimizer.records.fleet import Fleet
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.knowledge import InstalledEngine, OsName
from model_optimizer.records.live import LiveDiagnosis
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.run import RunManifest, RunSpec, ToolConfig
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import SLO, TrafficProfile
from model_optimizer.render.report import report_html
from model_optimizer.stages.context import Context
from model_optimizer.stages.intake import DEMO, demo_file
from model_optimizer.stages.plan import context_length, make_plan
from model_optimizer.store.journal import Journal, find_run, now, read_manifest, run_folder
from model_optimizer.store.objects import Store, make_folder, write_atomically

Ask = Callable[[ToolStatus], bool]


def home() -> Path:
    """Where everything lives: ``MODEL_OPTIMIZER_HOME``, else ``~/.model-optimizer``."""
    return Path(os.environ.get("MODEL_OPTIMIZER_HOME") or Path.home() / ".model-optimizer").expanduser().absolute()


def toolbox(
    show: Emit,
    overrides: Mapping[str, ToolConfig] | None = None,
    *,
    platform: str | None = None,
    ask: Ask | None = None,
) -> Toolbox:
    """The tool environments of this home, for ``platform`` (``cpu`` or ``cuda``; default: what this machine has).

    ``ask`` is called before one is built that nobody asked for by name.
    """
    return Toolbox(home() / "tools", overrides=dict(overrides or {}), emit=show, platform=platform, ask=ask)


def run(
    spec: RunSpec, *, show: Emit, output_dir: Path | None = None, remeasure: bool = False, ask: Ask | None = None
) -> RunManifest:
    """The whole pipeline. Raises ``ModelOptimizerError``; what was finished before is kept and found again."""
    return _run(optimize, spec, show=show, output_dir=output_dir, remeasure=remeasure, ask=ask)


def tune(spec: RunSpec, *, show: Emit, output_dir: Path | None = None, ask: Ask | None = None) -> RunManifest:
    """Gate and search alone: the settings that hold the most load within the SLO. Otherwise as ``run``."""
    return _run(tune_only, spec, show=show, output_dir=output_dir, remeasure=False, ask=ask)


def _run(
    pipeline: Callable[[RunSpec, Context], RunManifest],
    spec: RunSpec,
    *,
    show: Emit,
    output_dir: Path | None,
    remeasure: bool,
    ask: Ask | None,
) -> RunManifest:
    check_slo(spec.slo)
    place = home()
    host = target_host(spec.gpu, place)
    if output_dir is not None:
        make_folder(output_dir)
    folder = run_folder(place / "runs", spec)
    journal = Journal(folder)
    manifest = RunManifest(run_id=folder.name, started_at=now(), spec=spec, product_version=__version__, host=host)
    ctx = Context(
        store=Store(place, show),
        toolbox=toolbox(show, spec.tools, platform=host.accelerator, ask=ask),
        host=host,
        journal=journal,
        manifest=manifest,
        show=show,
        remeasure=remeasure,
    )
    ctx.emit("run_started", run=folder.name, folder=str(folder))
    try:
        manifest = pipeline(spec, ctx)
    finally:
        write_atomically(folder / "report.html", report_html(ctx.manifest).encode())
    if output_dir is not None:
        deliver(manifest, ctx, output_dir)
    return manifest


def deliver(manifest: RunManifest, ctx: Context, output_dir: Path) -> None:
    """Put the report, the manifest and the winner's files into a folder of the user's choice."""
    for name in ("report.html", "manifest.json"):
        shutil.copyfile(ctx.journal.folder / name, output_dir / name)
    if manifest.winner_artifact is not None and manifest.winner_artifact.key is not None:
        source = ctx.store.files(manifest.winner_artifact.key)
        target = output_dir / "model"
        partial = output_dir / f".model.{os.getpid()}"
        shutil.copytree(source, partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)


def plan(spec: RunSpec, *, show: Emit) -> tuple[ModelSpec, HostSpec, Plan]:
    """What ``run`` would try, and what it would refuse, from the checkpoint's headers alone."""
    check_slo(spec.slo)
    host = target_host(spec.gpu, home())
    tools = toolbox(show, spec.tools, platform=host.accelerator)
    model = look(spec.model, tools, show=show)
    return model, host, make_plan(spec, model, host, installed=tools.installed())


def plan_gpus(
    spec: RunSpec,
    *,
    show: Emit,
    os: OsName = "linux",
    driver: str | None = None,
    prices: Path | None = None,
    explain: bool = False,
) -> tuple[ModelSpec, Fleet]:
    """What the GPUs that ``spec.gpu`` names could serve, predicted from headers and facts; none need be here."""
    check_slo(spec.slo)
    targets_of(spec.gpu)  # a name that is not known is said before anything is fetched
    model = look(spec.model, toolbox(show, spec.tools), show=show)
    require_healthy(model)
    fleet = plan_fleet(
        model,
        spec.gpu,
        spec.traffic,
        spec.slo,
        objective=spec.objective,
        max_model_len=context_length(spec, model),
        os=os,
        driver=driver,
        engines=spec.engines,
        schemes=spec.schemes,
        prices=prices,
        request=request_values(spec) if explain else None,
    )
    return model, fleet


def look(ref: str, tools: Toolbox, *, show: Emit) -> ModelSpec:
    """A checkpoint's description from its headers; ``demo`` as the dequantized folder that it will be."""
    if ref != DEMO:
        return read_checkpoint(resolve_model(ref, emit=show)).model_copy(update={"source": ref})
    packed = read_checkpoint(demo_file(tools))
    unpacked = {
        "source": "demo",
        "format": "hf",
        "architecture": "LlamaForCausalLM",
        "weight_dtype": "BF16",
        "quantized_as": None,
        "weight_bytes": packed.num_parameters * 2,
    }
    return packed.model_copy(update=unpacked)


def inspect(ref: str, *, show: Emit) -> ModelSpec:
    """The checkpoint's description with its health; a damaged one is described as far as it goes."""
    return look(ref, toolbox(show), show=show)


def target_host(gpu: str, place: Path) -> HostSpec:
    """This machine, as the request wants to use it.

    Raises ``HostError`` where the request names a GPU that is not in this machine: measuring happens here.
    """
    make_folder(place)
    host = probe_host(place)
    wanted = gpu.strip().lower()
    if wanted == "auto":
        return host
    if wanted == "cpu":
        return host.model_copy(update={"gpus": ()})
    words = [word for word in wanted.replace("-", " ").split() if word not in ("nvidia", "geforce")]
    matching = tuple(g for g in host.gpus if all(word in g.name.lower().split() for word in words))
    if not matching:
        here = ", ".join(g.name for g in host.gpus) or "no GPU that the driver shows"
        raise HostError(
            f"{gpu} is not in this machine",
            cause=f"found here: {here}",
            fix="run on a machine that has it, or take --gpu auto (what is here) or --gpu cpu",
        )
    return host.model_copy(update={"gpus": matching})


def bench(
    url: str, traffic: TrafficProfile, slo: SLO, *, show: Emit, model: str | None = None, api_key: str | None = None
) -> tuple[LoadRun, tuple[Check, ...]]:
    """Load-test any OpenAI-compatible server and judge it."""
    measured = run_loads(Target(base_url=url.rstrip("/"), model=model), traffic, slo, emit=show, api_key=api_key)
    at = slo.at or measured.results[0].load
    result = next((r for r in measured.results if r.load == at), None)
    if result is None:
        raise UnknownName(
            f"the SLO is to hold at {at}, which the traffic does not measure",
            cause="measured: " + ", ".join(str(r.load) for r in measured.results),
            fix="add that load to the traffic, or name one of these",
        )
    return measured, judge(result, slo)


def installed_engine(name: str, *, show: Emit) -> InstalledEngine | None:
    """What the installed engine of that name says about itself, ``None`` where it is not installed or cannot be asked.

    The first answer takes as long as the engine's import (vLLM: 10 to 30 s) and is remembered until something else is
    installed. Raises ``UnknownName``, and ``JobFailed`` or ``ToolBroken`` where the installation does not answer.
    """
    return ask_engine(toolbox(show), query.engine(name).id, emit=show)


def status(name: str | None) -> RunManifest:
    """The manifest of a run; the latest without a name."""
    return read_manifest(find_run(home() / "runs", name))


def runs() -> Sequence[RunManifest]:
    """All runs of this home, oldest first."""
    folders = (home() / "runs").glob("*/manifest.json")
    return [read_manifest(path.parent) for path in sorted(folders, key=lambda path: path.stat().st_mtime)]


def report(name: str | None, to: Path | None = None) -> Path:
    """Render a run's report anew, beside the run or at ``to``; the path of the file."""
    folder = find_run(home() / "runs", name)
    target = to or folder / "report.html"
    write_atomically(target, report_html(read_manifest(folder)).encode())
    return target


def diagnose_file(log: str, *, engine: str | None = None, facts: Path | None = None) -> Diagnosis:
    """The root cause that a log file shows; ``log`` may also be a run, whose failed steps' logs are then read.

    Raises ``SpecInvalid`` where there is no such file or run.
    """
    path = Path(log)
    if not path.is_file():
        try:
            path = _log_of_failure(find_run(home() / "runs", log))
        except UnknownName as error:
            raise SpecInvalid(
                f"{log} is neither a log file nor a run", cause=error.cause, fix="name a file, a run, or - for stdin"
            ) from error
    with path.open("rb") as file:
        return diagnose_text(file, engine=engine, facts=facts)


def diagnose_text(source: IO[bytes], *, engine: str | None = None, facts: Path | None = None) -> Diagnosis:
    """The same from an open file; ``facts`` is a YAML mapping of what is known of the host."""
    known = read_yaml(facts) if facts is not None else {}
    if not isinstance(known, dict):
        raise SpecInvalid(f"{facts} is not a mapping", cause="facts are written name: value", fix="gpu: NVIDIA L4")
    return diagnose(source, causes(), known, engine)


def doctor(recorded: Path | None = None) -> tuple[Survey, Examination]:
    """What was read on this host, or the survey in ``recorded`` (JSON), and what it means. Changes nothing.

    Raises ``SpecInvalid`` where the file holds no survey.
    """
    began = time.monotonic()
    if recorded is None:
        survey = take_survey(home=home())
    else:
        try:
            survey = Survey.model_validate_json(recorded.read_bytes())
        except (OSError, ValueError) as error:
            raise SpecInvalid(
                f"{recorded} is not a survey",
                cause=str(error).splitlines()[0][:200],
                fix="write one with: model-optimize doctor --survey FILE",
            ) from error
    found = examine(survey, conditions(), seconds=round(time.monotonic() - began, 3))
    return survey, found.model_copy(update={"works": works(survey, found)})


def micro_probe(*, show: Emit) -> tuple[ProbedValue, ...]:
    """How fast memory, matrix units, links and the disk of the models really are: about 20 seconds of this machine.

    Builds no environment; what cannot be measured is told as a note. Raises ``NotWritable`` where the home cannot be.
    """
    place = home()
    host, tools = probe_host(place), toolbox(show)
    with tempfile.TemporaryDirectory(prefix="microprobe-") as scratch:
        log = place / "logs" / "microprobe.log"
        return measure(tools, host, folder=place, scratch=Path(scratch), log=log, emit=show)


def diagnose_server(
    url: str, *, show: Emit, seconds: float = 10.0, slo: SLO | None = None, api_key: str | None = None
) -> LiveDiagnosis:
    """What a running server is busy with, from its metrics page over that many seconds. Sends it no load.

    Raises ``ServerUnusable`` where nothing answers or a key is needed, ``SpecInvalid`` for an address that is none.
    """
    address, engines = Address.parse(url), engine_metrics()
    local = local_server(address.host, address.port)

    def see() -> Seen:
        return Seen(local.cpu_seconds(), local.gpu_busy()) if local is not None else Seen()

    paths = [path for engine in engines for path in engine.pages]
    watched = watch(url, paths, seconds=seconds, emit=show, api_key=api_key, see=see)
    known = watched.identity
    found = classify(watched.scrapes, engines, regimes(), slo=slo, slots=known.slots, engine=known.engine)
    told = {"engine": found.engine or known.engine, "version": known.version, "model": known.model}
    return found.model_copy(update=told)


def _log_of_failure(run_folder: Path) -> Path:
    """The log of the run's first failed step, or the newest log."""
    failed = [s for s in read_manifest(run_folder).stages if s.status == "failed"]
    logs = sorted((run_folder / "logs").glob("*.log"), key=lambda path: path.stat().st_mtime)
    wanted = [path for path in logs if failed and path.name.startswith(f"{failed[0].stage}-")]
    if not logs:
        raise UnknownName(f"run {run_folder.name} has no logs", cause="no step has started", fix="name another run")
    return (wanted or logs)[-1]


def as_json(value: Any) -> str:
    """Records (or collections of them) as JSON text."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f'"{key}":{as_json(item)}' for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(as_json(item) for item in value) + "]"
    return str(value.model_dump_json())
