"""A plan over GPUs as tables for the terminal: options, the best one in detail, refusals by reason, the arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from model_optimizer.cli.show import DASH, show_checks
from model_optimizer.kb import query
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.fleet import Fleet, Lever, Option, Section
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.verdict import Check
from model_optimizer.render.quantities import money, quantity, span
from model_optimizer.render.words import counted
from model_optimizer.units import format_bytes, format_count, format_seconds

SHOWN_OPTIONS = 8
SHOWN_OF_A_REASON = 3
STATES = {"native": "green", "emulated": "yellow", "unknown": "magenta", "impossible": "red"}
_TITLES = {
    "SOURCE_ALREADY_QUANTIZED": "the checkpoint is quantized already",
    "NOT_ESTABLISHED": "no source decides",
}


def show_fleet(console: Console, model: ModelSpec, fleet: Fleet, *, explain: bool) -> None:
    """Everything about a plan over GPUs; ``explain`` shows every refusal and the arithmetic of the best option."""
    _head(console, model, fleet)
    if fleet.options:
        many = len({option.deployment.gpu for option in fleet.options}) > 1
        _gpu_table(console, fleet) if many else _option_table(console, fleet, all_of_them=explain)
    if fleet.feasible:
        _details(console, fleet.options[0])
    else:
        _way_out(console, fleet)
    for section in fleet.explanation:
        show_section(console, section)
    _refusals(console, fleet.refused, all_of_them=explain)


def _head(console: Console, model: ModelSpec, fleet: Fleet) -> None:
    console.print(
        f"[bold]{escape(model.source)}[/] ({escape(model.architecture)}, {format_count(model.num_parameters)} "
        f"parameters, {model.weight_dtype}) on [bold]{escape(fleet.gpu)}[/]"
    )
    limits = ", ".join(f"{check.name} {check.limit}" for check in _limits(fleet)) or "none: anything that fits"
    console.print(f"[dim]traffic {fleet.traffic.id}, loads {', '.join(map(str, fleet.traffic.loads))}; SLO {limits}[/]")
    console.print(
        f"[dim]judged at {fleet.at}; GPUs and costs for {fleet.load}; objective {fleet.objective}. "
        "All figures are [/][bold]predicted[/]"
    )
    for note in fleet.notes:
        console.print(f"[yellow]doubt[/] {escape(note)}")
    console.print()


def _limits(fleet: Fleet) -> tuple[Check, ...]:
    some = fleet.options[0] if fleet.options else fleet.nearest
    return some.checks if some is not None else ()


def _option_table(console: Console, fleet: Fleet, *, all_of_them: bool) -> None:
    shown = fleet.options if all_of_them else fleet.options[:SHOWN_OPTIONS]
    columns = (
        Column("", 0), Column("option", 0), Column("state", 1), Column("weights", 4, "right"),
        Column("KV cache", 3, "right"), Column("context", 5, "right"), Column("TTFT, 1 user", 1, "right"),
        Column("TPOT, 1 user", 0, "right"), Column("users", 0, "right"), Column("GPUs", 2, "right"),
        Column("$/M tok", 2, "right"),
    )  # fmt: skip
    rows = []
    for number, option in enumerate(shown, 1):
        memory = option.memory
        rows.append(
            (
                f"[dim]{number}[/]",
                _name(option),
                _state(option),
                format_bytes(memory.weight_bytes),
                format_bytes(memory.kv_bytes),
                f"{memory.longest_context:,}",
                span(option.light.ttft_s),
                span(option.light.tpot_s),
                _users(option),
                str(option.num_gpus) if option.meets else DASH,
                money(option.price.usd_per_million_tokens),
            )
        )
    console.print(fitted(console, columns, rows))
    if len(fleet.options) > len(shown):
        console.print(f"[dim]{len(fleet.options) - len(shown)} more with --explain or --json[/]")


def _gpu_table(console: Console, fleet: Fleet) -> None:
    """One row a GPU: its best option."""
    columns = (
        Column("", 0), Column("GPU", 0), Column("best option", 0), Column("state", 5), Column("GPUs", 0, "right"),
        Column("$/M tok", 0, "right"), Column("$/h", 3, "right"), Column("power/month", 4, "right"),
        Column("TTFT", 2, "right"), Column("TPOT", 1, "right"), Column("users", 4, "right"),
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for option in fleet.options:
        if option.deployment.gpu in seen:
            continue
        seen.add(option.deployment.gpu)
        meets, loaded, price = option.meets, option.loaded or option.light, option.price
        rows.append(
            (
                f"[dim]{len(seen)}[/]",
                escape(query.gpu(option.deployment.gpu).title),
                _name(option),
                _state(option),
                str(option.num_gpus) if meets else DASH,
                money(price.usd_per_million_tokens) if meets else DASH,
                money(price.usd_per_hour) if meets else DASH,
                money(price.power_usd_per_month) if meets else DASH,
                format_seconds(loaded.ttft_s.value),
                format_seconds(loaded.tpot_s.value),
                _users(option),
            )
        )
    console.print(fitted(console, columns, rows))
    console.print(
        f"[dim]GPUs, dollars, TTFT and TPOT at {fleet.load}; {fleet.considered:,} combinations of GPU, engine, scheme "
        "and count were worked out[/]"
    )


def _details(console: Console, option: Option) -> None:
    """The best option: what it needs, how far it goes, what it costs, why it comes first."""
    memory, price, deployment = option.memory, option.price, option.deployment
    console.print(f"\n[bold]first to try: {escape(deployment.label)}[/]")
    rows = [
        ("why", option.why),
        ("engine", f"{deployment.engine} {deployment.version}"),
        ("state", f"{option.state.state}: {option.state.sentence}"),
        (
            "memory",
            f"{format_bytes(memory.weight_bytes)} weights, {format_bytes(memory.activation_bytes)} activations, "
            f"{format_bytes(memory.graph_bytes + memory.runtime_bytes)} graphs and runtime; "
            f"{format_bytes(memory.kv_bytes)} left for the KV cache: one sequence of {memory.longest_context:,} tokens "
            f"or {memory.max_sequences:,} of the traffic's",
        ),
        ("one user", f"TTFT {span(option.light.ttft_s)}, TPOT {span(option.light.tpot_s)}"),
    ]
    if option.capacity is not None:
        tokens = option.capacity.output_tokens_per_s.value
        rate = option.capacity.request_rate_per_s.value
        rows.append(
            (
                "capacity",
                f"{option.capacity.concurrency:.0f} users at once on one replica ({tokens:,.0f} tokens/s, {rate:.3g} "
                f"requests/s); the next is stopped by {option.binding}",
            )
        )
    gpus = f"{option.num_gpus} × {query.gpu(deployment.gpu).title}"
    cost = f"{money(price.usd_per_million_tokens)} a million output tokens, {money(price.usd_per_hour)} an hour"
    rows.append(("GPUs", gpus))
    rows.append(("cost", f"{cost} ({price.basis})" if price.usd_per_hour is not None else price.basis))
    if price.power_usd_per_month is not None:
        rows.append(("power", f"{money(price.power_usd_per_month)} a month: {price.power_basis}"))
    if deployment.engine_args:
        rows.append(("start with", ", ".join(f"{key}={value}" for key, value in deployment.engine_args.items())))
    rows += [("note", note) for note in option.notes]
    console.print(_pairs(rows))
    show_checks(console, option.checks)


def _way_out(console: Console, fleet: Fleet) -> None:
    """Nothing keeps the SLO: what comes nearest, what binds, what would help."""
    console.print("\n[bold red]Nothing here is predicted to keep the SLO.[/]")
    near = fleet.nearest
    if near is not None:
        console.print(f"nearest: [bold]{escape(near.deployment.label)}[/]")
        show_checks(console, near.checks)
        console.print(f"what binds: {escape(near.binding)}")
        for note in near.notes:
            console.print(f"[dim]{escape(note)}[/]")
    if fleet.levers:
        console.print("\nwhat would help, cheapest first:")
        for lever in fleet.levers:
            console.print(f"  [green]{escape(_lever(lever))}[/]\n    [dim]{escape(lever.result)}[/]")


def _lever(lever: Lever) -> str:
    return lever.change if lever.usd_per_hour is None else f"{lever.change}  ({money(lever.usd_per_hour)} an hour)"


def _refusals(console: Console, refused: Sequence[Refusal], *, all_of_them: bool) -> None:
    """Refused routes by reason, each sentence once with its source, its date and the way out."""
    if not refused:
        return
    console.print(f"\n[bold]left out[/] [dim]{counted(len(refused), 'route')}[/]")
    for code, group in refusal_groups(refused):
        console.print(
            f"\n[yellow]{escape(_TITLES.get(code) or _title(code))}[/] [dim]{code}, {counted(len(group), 'route')}[/]"
        )
        said: dict[str, list[Refusal]] = {}
        for refusal in group:
            said.setdefault(refusal.reason, []).append(refusal)
        shown = list(said.items()) if all_of_them else list(said.items())[:SHOWN_OF_A_REASON]
        for reason, same in shown:
            console.print(f"  {escape(_routes(same, all_of_them))}\n    {escape(reason)}")
            first = same[0]
            origin = ", ".join(part for part in (first.source, first.date) if part)
            if origin:
                console.print(f"    [dim]source: {escape(origin)}[/]")
        if len(said) > len(shown):
            console.print(f"  [dim]{len(said) - len(shown)} more with --explain[/]")
        if group[0].fix:
            console.print(f"  way out: {escape(group[0].fix)}")


def refusal_groups(refused: Iterable[Refusal]) -> list[tuple[str, list[Refusal]]]:
    """By reason code, those about the model itself first, then the largest groups."""
    first = ("SOURCE_ALREADY_QUANTIZED", "ROOFLINE_ABOVE_SLO", "WEIGHTS_DO_NOT_FIT", "KV_CACHE_DOES_NOT_FIT")
    groups: dict[str, list[Refusal]] = {}
    for refusal in refused:
        groups.setdefault(refusal.code, []).append(refusal)
    place = {code: number for number, code in enumerate(first)}
    return sorted(groups.items(), key=lambda item: (place.get(item[0], len(first)), -len(item[1])))


def _routes(same: Sequence[Refusal], all_of_them: bool) -> str:
    names = [refusal.route for refusal in same]
    if all_of_them or len(names) <= SHOWN_OF_A_REASON:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN_OF_A_REASON])} and {len(names) - SHOWN_OF_A_REASON} more"


def _title(code: str) -> str:
    try:
        return query.reason(code).title
    except KeyError:
        return code.replace("_", " ").lower()


def show_section(console: Console, section: Section) -> None:
    """A part of the arithmetic: name, value, how, from what."""
    console.print(f"\n[bold]{escape(section.title)}[/]")
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "left", "left"):
        table.add_column(justify=justify, overflow="fold")
    for term in section.terms:
        origin = f"[dim]{escape(term.origin)}[/]"
        table.add_row(f"  {escape(term.name)}", escape(quantity(term)), escape(term.formula), origin)
    console.print(table)


def _users(option: Option) -> str:
    return f"{option.capacity.concurrency:.0f}" if option.capacity is not None else "[red]0[/]"


def _state(option: Option) -> str:
    return f"[{STATES[option.state.state]}]{option.state.state}[/]"


def _name(option: Option) -> str:
    deployment = option.deployment
    count = deployment.parallelism.num_gpus
    kv = "" if deployment.kv_dtype == "auto" else f" [yellow]{deployment.kv_dtype}[/]"
    return f"{escape(deployment.scheme)} · {escape(deployment.engine)}{kv}{f' · {count}x' if count > 1 else ''}"


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(f"  {name}", text if text.startswith("[") else escape(text))
    return table


class Column(NamedTuple):
    """A column of a table that must fit: those of the highest ``gives_way`` go first, 0 stays."""

    title: str
    gives_way: int
    justify: Literal["left", "right"] = "left"


def fitted(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    """A table without the columns that a narrow terminal has no room for."""
    widths = [
        max(cell_len(Text.from_markup(text).plain) for text in (column.title, *(row[place] for row in rows))) + 2
        for place, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while sum(widths[place] for place in kept) > console.width:
        last = max(columns[place].gives_way for place in kept)
        if last == 0:
            break
        kept = [place for place in kept if columns[place].gives_way != last]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for place in kept:
        table.add_column(columns[place].title, justify=columns[place].justify, no_wrap=True)
    for row in rows:
        table.add_row(*(row[place] for place in kept))
    return table
