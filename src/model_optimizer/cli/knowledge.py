"""``gpus``, ``engines``, ``schemes``: what the knowledge base says, each value with unit, status and source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model_optimizer import api
from model_optimizer.cli.progress import ProgressView
from model_optimizer.errors import SpecInvalid
from model_optimizer.kb import query
from model_optimizer.kb.ladder import rungs
from model_optimizer.records.hardware import GpuSpec, PcieLink
from model_optimizer.records.knowledge import EngineFacts, SchemeSpec, Source, Sourced, State
from model_optimizer.units import format_bytes

STATUS = {"vendor": "green", "measured": "cyan", "community": "yellow"}
STATES = {"native": "green", "emulated": "yellow", "unknown": "magenta", "impossible": "red"}
DASH = "[dim]–[/]"

# Name, field of GpuSpec, unit. The order of a data sheet.
_FACTS: tuple[tuple[str, str, str], ...] = (
    ("compute capability", "compute_capability", ""),
    ("gfx", "gfx", ""),
    ("multiprocessors", "multiprocessors", ""),
    ("boost clock", "boost_clock_hz", "Hz"),
    ("memory on the label", "memory_bytes", "B"),
    ("memory a driver shows", "reported_memory_bytes", "B"),
    ("memory bandwidth", "memory_bandwidth_bytes_s", "B/s"),
    ("L2 cache", "l2_bytes", "B"),
    ("last-level cache", "last_level_cache_bytes", "B"),
    ("NVLink, both directions", "nvlink_bytes_s", "B/s"),
    ("link to its CPU", "c2c_bytes_s", "B/s"),
    ("PCIe", "pcie", "pcie"),
    ("power limit", "tdp_w", "W"),
    ("oldest driver, Linux", "min_driver_linux", ""),
    ("last driver branch", "max_driver_branch", ""),
    ("first CUDA", "min_cuda", ""),
    ("last CUDA", "max_cuda", ""),
)
_TYPES = ("fp32", "fp16", "bf16", "fp8", "fp4", "int8")


def gpus_command(names: Sequence[str], *, compare: bool, json: bool) -> None:
    """All GPUs, one, or several side by side."""
    console = Console(highlight=False)
    found = _named(names, compare=compare)
    if compare and len(found) < 2:
        raise SpecInvalid(
            "--compare needs two GPUs or more",
            cause=f"{len(found)} named",
            fix="for example: model-optimize gpus --compare l20 l40s h100-sxm",
        )
    if json:
        print(api.as_json(found if names else list(query.gpus())))
    elif not found:
        _list_gpus(console, query.gpus())
    elif len(found) == 1:
        _one_gpu(console, found[0])
    else:
        _compare(console, found)


def _named(names: Sequence[str], *, compare: bool) -> list[GpuSpec]:
    """The GPUs of these names; several words that are one name (``gtx 1070``) are taken as that."""
    if not compare and len(names) > 1:
        together = query.matching_gpus(" ".join(names))
        if len(together) == 1:
            return list(together)
    return [query.gpu(name) for name in names]


def _list_gpus(console: Console, specs: Iterable[GpuSpec]) -> None:
    table = _table("id", "name", "arch", "label", ">memory", ">GB/s", ">TFLOP/s 16 bit", ">FP8", ">W", ">$/h")
    for spec in specs:
        hour = query.usd_per_hour(spec.id)
        sixteen = spec.peak_flops("bf16") or spec.peak_flops("fp16")
        table.add_row(
            spec.id,
            escape(spec.title),
            spec.architecture,
            spec.label,
            format_bytes(spec.memory_bytes.value),
            f"{spec.memory_bandwidth_bytes_s.value / 1e9:,.0f}",
            _tera(sixteen),
            _tera(spec.peak_flops("fp8")),
            f"{spec.tdp_w.value:g}" if spec.tdp_w else DASH,
            f"{hour.value:.2f}" if hour else DASH,
        )
    console.print(table)
    console.print("[dim]dense rates, FP32 accumulation; $/h: median of what is asked, prices move. One: gpus NAME[/]")


def _one_gpu(console: Console, spec: GpuSpec) -> None:
    console.print(
        f"[bold]{escape(spec.title)}[/]  [dim]{spec.id}, {spec.vendor} {spec.architecture}, {spec.chip or ''}[/]\n"
    )
    table = _table("fact", ">value", "status", "source")
    before: tuple[str, ...] = ()
    for name, value, sourced in _facts_of(spec):
        status = f"[{STATUS[sourced.status]}]{sourced.status}[/]" + (" (derived)" if sourced.basis == "derived" else "")
        note = f"\n[dim]{escape(sourced.note)}[/]" if sourced.note else ""
        origin = _titles([spec.source(i) for i in sourced.sources]) + note
        table.add_row(name, value, status, "[dim]the same[/]" if sourced.sources == before else origin)
        before = sourced.sources
    console.print(table)
    if spec.features:
        have = [name for name, known in spec.features.items() if known]
        lack = [name for name, known in spec.features.items() if not known]
        console.print(f"\nhas {', '.join(have) or 'none'}; lacks {', '.join(lack) or 'none'}")
    for issue in spec.known_issues:
        console.print(f"[yellow]mind[/] {escape(issue)}")
    old = query.too_old_for(spec.id)
    if old:
        console.print("\n[bold]too old for[/]")
        for state in old:
            console.print(f"  [red]{state.engine} {state.version}[/]  {escape(state.sentence)}  {_origin(state)}")
    steps = rungs(spec)
    if steps:
        console.print(f"\n[bold]what to try first[/] [dim]({escape(steps[0].generation)})[/]")
        for step in steps:
            where = f" in {', '.join(step.engines)}" if step.engines else ""
            console.print(f"  {step.number}. {', '.join(step.schemes)}{where}: {escape(step.why)}")
    _prices(console, spec)


def _prices(console: Console, spec: GpuSpec) -> None:
    known = query.prices(spec.id)
    if not known:
        console.print("\n[dim]nobody's price for an hour of it is known; --prices FILE takes yours[/]")
        return
    console.print("\n[bold]what an hour of one costs[/]")
    for price in known:
        together = f", {price.gpus_per_machine} together" if price.gpus_per_machine > 1 else ""
        console.print(
            f"  ${price.usd_per_hour:.2f} {escape(price.provider)} ({price.tier}{together}), {price.date}, "
            f"{price.status}"
        )


def _compare(console: Console, specs: Sequence[GpuSpec]) -> None:
    table = _table("", *(f">{spec.title}" for spec in specs))
    columns = [{name: (value, fact) for name, value, fact in _facts_of(spec)} for spec in specs]
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = []
        for column in columns:
            value, fact = column.get(name, (DASH, None))
            cells.append(f"{value} [dim]{fact.status[0]}[/]" if fact is not None else value)
        table.add_row(name, *cells)
    hours = [query.usd_per_hour(spec.id) for spec in specs]
    table.add_row("median price an hour", *(f"${hour.value:.2f} [dim]c[/]" if hour else DASH for hour in hours))
    table.add_row("too old for", *(", ".join(s.engine for s in query.too_old_for(spec.id)) or DASH for spec in specs))
    table.add_row("first to try", *((rungs(spec)[0].schemes[0] if rungs(spec) else DASH) for spec in specs))
    console.print(table)
    console.print("[dim]v vendor, m measured, c community; gpus NAME shows sources[/]")


def _facts_of(spec: GpuSpec) -> Iterable[tuple[str, str, Sourced[Any]]]:
    for name, field, unit in _FACTS:
        fact = getattr(spec, field)
        if fact is not None:
            yield name, _quantity(fact.value, unit), fact
        if field == "memory_bandwidth_bytes_s":
            for dtype in _TYPES:
                peak = spec.dense_flops.get(dtype)
                if peak is not None:
                    yield f"dense {dtype}", _quantity(peak.value, "OP/s" if dtype == "int8" else "FLOP/s"), peak


def engines_command(name: str | None, *, json: bool) -> None:
    """All engines, or one with its flags, metrics and what people get wrong."""
    console = Console(highlight=False)
    found = [query.engine(name)] if name else list(query.engines())
    if json:
        print(api.as_json(found))
    elif name:
        _one_engine(console, found[0])
        _as_installed(console, found[0])
    else:
        table = _table("id", "version", "server", "reads", "runs on", "Windows", "oldest capability")
        for facts in found:
            floor = facts.min_compute_capability
            table.add_row(
                facts.id, facts.current_version, "yes" if facts.server else "no", ", ".join(facts.checkpoints),
                ", ".join(facts.platforms), escape(facts.os.get("windows", "")), floor.value if floor else DASH,
            )  # fmt: skip
        console.print(table)
        console.print("[dim]One with its flags: engines NAME[/]")


def _one_engine(console: Console, facts: EngineFacts) -> None:
    inspected = f", inspected {', '.join(facts.inspected_versions)}" if facts.inspected_versions else ""
    console.print(f"[bold]{escape(facts.title)}[/] {facts.current_version}  [dim]{facts.id}{inspected}[/]\n")
    rows = [
        ("reads", ", ".join(facts.checkpoints)),
        ("runs on", ", ".join(facts.platforms)),
        *((f"on {os}", text) for os, text in facts.os.items()),
        ("Python", facts.python or ""),
        ("pins", ", ".join(f"{key} {value}" for key, value in facts.pins.items())),
        ("compute capability", facts.min_compute_capability.value if facts.min_compute_capability else ""),
        ("code inside for", ", ".join(facts.shipped_capabilities.value) if facts.shipped_capabilities else ""),
        ("oldest driver, Linux", facts.min_driver_linux.value if facts.min_driver_linux else ""),
        ("memory flag is a share of", facts.memory_share.replace("_", " ")),
        ("start", facts.serve or ""),
        ("quantization methods", ", ".join(facts.quantization_methods)),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for key, text in rows:
        if text:
            table.add_row(key, escape(text))
    console.print(table)
    if facts.flags:
        console.print("\n[bold]flags[/]")
        flags = _table("flag", "default", "since", "removed", "note")
        for flag in facts.flags:
            default = "" if flag.default is None else str(flag.default)
            flags.add_row(escape(flag.flag), escape(default), flag.since or "", flag.removed or "", escape(flag.note))
        console.print(flags)
    for missing in facts.missing:
        instead = f"; instead: {missing.instead}" if missing.instead else ""
        console.print(f"[red]not there[/] {escape(missing.name)}: {escape(missing.why)}{escape(instead)}")
    for note in facts.notes:
        console.print(f"[yellow]mind[/] {escape(note)}")
    console.print(f"\n[dim]sources: {_titles(facts.sources)}[/]")


def _as_installed(console: Console, facts: EngineFacts) -> None:
    """What the installation on this machine says; it wins over the table above."""
    with ProgressView() as view:
        here = api.installed_engine(facts.id, show=view)
    if here is None:
        return
    console.print(f"\n[bold]as installed here[/]: {escape(here.version)}, {len(here.flags)} flags")
    methods = (f"{name} ≥ {floor}" if floor else name for name, floor in sorted(here.methods.items()))
    if here.methods:
        console.print(f"  quantization methods: {escape(', '.join(methods))}")
    names = {flag for flag in here.flags if flag.startswith("--")}  # a library has parameters, not flags
    known = [flag for flag in facts.flags if not flag.removed]
    gone = [f.flag for f in known if names and not any(n in names or here.flag(n) for n in f.flag.split(" / "))]
    if gone:
        console.print(f"  [yellow]not in this installation[/]: {escape(', '.join(gone))}")


def schemes_command(name: str | None, *, json: bool) -> None:
    """All schemes, or one with what each serving engine does with it, by GPU architecture."""
    console = Console(highlight=False)
    found = [query.scheme(name)] if name else list(query.schemes())
    if json:
        print(api.as_json(found))
    elif name:
        _one_scheme(console, found[0])
    else:
        table = _table("id", "name", ">bits a weight", ">activations", "computes in", "file", "calibration")
        for scheme in found:
            table.add_row(
                scheme.id, escape(scheme.title), f"{scheme.weight_bits:g}", f"{scheme.activation_bits:g}",
                scheme.compute, scheme.checkpoint, scheme.calibration,
            )  # fmt: skip
        console.print(table)
        console.print("[dim]What an engine does with one, by GPU: schemes NAME[/]")


def _one_scheme(console: Console, scheme: SchemeSpec) -> None:
    console.print(f"[bold]{escape(scheme.title)}[/]  [dim]{scheme.id}[/]\n")
    console.print(
        f"{scheme.weight_bits:g} bits a {'weight' if scheme.kind == 'weights' else 'KV cache element'}, activations of "
        f"{scheme.activation_bits:g}, computed in {scheme.compute}; stored as {scheme.checkpoint}; calibration: "
        f"{scheme.calibration}"
    )
    if scheme.note:
        console.print(escape(scheme.note))
    if scheme.methods:
        console.print(
            "called " + ", ".join(f"{escape(method)} in {engine}" for engine, method in scheme.methods.items())
        )
    console.print(f"[dim]sources: {_titles(scheme.sources)}[/]\n")
    for engine in query.engines():
        if engine.server:
            _scheme_in(console, scheme, engine)


def _scheme_in(console: Console, scheme: SchemeSpec, engine: EngineFacts) -> None:
    """The states of a scheme in an engine, GPUs with the same answer together."""
    answers: dict[tuple[str, str], list[GpuSpec]] = {}
    said: dict[tuple[str, str], State] = {}
    for spec in query.gpus():
        state = query.state(scheme.id, engine.id, spec.id)
        answers.setdefault((state.state, state.code), []).append(spec)
        said.setdefault((state.state, state.code), state)
    console.print(f"[bold]{escape(engine.title)}[/] {engine.current_version}")
    for answer, specs in answers.items():
        state = said[answer]
        console.print(f"  [{STATES[state.state]}]{state.state}[/] [dim]{state.code}[/] on {_grouped(specs)}")
        console.print(f"    {escape(state.sentence)}  {_origin(state)}")


def _grouped(specs: Sequence[GpuSpec]) -> str:
    """GPUs by their architecture where all of it are there, else by name."""
    if len(specs) == len(query.gpus()):
        return "every GPU"
    sizes = Counter(spec.architecture for spec in query.gpus())
    here = Counter(spec.architecture for spec in specs)
    whole = [name for name, count in here.items() if count == sizes[name]]
    return ", ".join([*(f"all {name}" for name in whole), *(s.id for s in specs if s.architecture not in whole)])


def _origin(state: State) -> str:
    source = state.sources[0].title if state.sources else state.status
    return f"[dim]({escape(source)}{', ' + state.date if state.date else ''})[/]"


def _titles(sources: Iterable[Source]) -> str:
    return escape("; ".join(f"{source.title} ({source.read})" for source in sources))


def _quantity(value: object, unit: str) -> str:
    if isinstance(value, PcieLink):
        return f"{value.generation}.0 x{value.lanes}"
    if not isinstance(value, int | float):
        return str(value)
    if unit == "B":
        return format_bytes(value)
    if unit == "B/s":
        return f"{value / 1e9:,.4g} GB/s" if value < 1e12 else f"{value / 1e12:.4g} TB/s"
    if unit == "Hz":
        return f"{value / 1e6:,.0f} MHz"
    if unit in ("FLOP/s", "OP/s"):
        return f"{value / 1e12:,.5g} T{unit}"
    return f"{value:g} {unit}".rstrip()


def _tera(fact: Sourced[float] | None) -> str:
    return DASH if fact is None else f"{fact.value / 1e12:,.4g}"


def _table(*columns: str) -> Table:
    """Columns whose name begins with ``>`` are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return table
