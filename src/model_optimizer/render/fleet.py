"""A plan over GPUs → one HTML file for whoever buys or rents them: picture, table, the best one, refusals, sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from model_optimizer import __version__
from model_optimizer.records.candidate import Refusal
from model_optimizer.records.fleet import Fleet, Option
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import Reason, Sourced
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import Term
from model_optimizer.records.workload import Load
from model_optimizer.render import words
from model_optimizer.render.candidate_charts import frontier
from model_optimizer.render.chart import Chart, Data, Table
from model_optimizer.render.quantities import money, quantity, span
from model_optimizer.render.report import environment, script_json
from model_optimizer.render.series import Role

SHOWN_ROWS = 26
"""More options than this are folded away."""

_MS = 1e3
_BRANDS = ("GeForce", "Instinct", "Radeon", "Tesla", "Intel", "Generation", "GPU", "Grace", "Hopper")
_TYPES = ("bf16", "fp16", "fp8", "fp4", "int8")


@dataclass(frozen=True)
class Row:
    """One line of the comparison: the best option of a GPU, or (one kind of GPU asked for) an option."""

    id: str
    name: str
    role: Role
    option: Option
    gpu: GpuSpec

    @property
    def short(self) -> str:
        """The name as a picture has room for it: no brand, no brackets, no memory size."""
        if self.name != self.gpu.title:
            return self.name
        plain = re.sub(r"\s*\(.*?\)|\b\d+GB\b", "", self.name)
        return " ".join(word for word in plain.split() if word not in _BRANDS)

    @property
    def recipe(self) -> str:
        """``fp8 · vllm · 2x``."""
        deployment = self.option.deployment
        kv = "" if deployment.kv_dtype == "auto" else f" · {deployment.kv_dtype}"
        count = deployment.parallelism.num_gpus
        return f"{deployment.scheme} · {deployment.engine}{kv}{f' · {count}x' if count > 1 else ''}"


def fleet_html(model: ModelSpec, fleet: Fleet, gpus: Mapping[str, GpuSpec], reasons: Mapping[str, Reason]) -> str:
    """The page of a plan, self-contained like the report. ``gpus`` and ``reasons`` are the facts its ids name."""
    rows = rows_of(fleet, gpus)
    pictures = fleet_charts(fleet, rows)
    return (
        environment()
        .get_template("fleet.html.j2")
        .render(
            model=model,
            fleet=fleet,
            version=__version__,
            rows=rows,
            many=len({row.gpu.id for row in rows}) > 1,
            best=rows[0] if fleet.feasible else None,
            sentence=headline(fleet, rows),
            load=load_words(fleet.load),
            at=load_words(fleet.at),
            tone="good" if fleet.feasible else "bad",
            charts=pictures,
            chart_data=script_json({c.id: {"kind": c.kind, **c.data} for c in pictures if not c.absent}),
            groups=refusal_groups(fleet, reasons),
            facts=[(row.gpu, _facts(row.gpu)) for row in _one_a_gpu(rows)],
            shown_rows=SHOWN_ROWS,
            money=money,
            span=span,
            quantity=quantity,
        )
    )


def rows_of(fleet: Fleet, gpus: Mapping[str, GpuSpec]) -> tuple[Row, ...]:
    """The best of each GPU in the fleet's order; all options where there is one kind of GPU."""
    options = list(fleet.options) or ([fleet.nearest] if fleet.nearest else [])
    many = len({option.deployment.gpu for option in options}) > 1
    rows: list[Row] = []
    seen: set[str] = set()
    for option in options:
        gpu = gpus[option.deployment.gpu]
        if many and gpu.id in seen:
            continue
        seen.add(gpu.id)
        role: Role = "other"
        if not rows:
            role = "winner" if fleet.feasible else "nearest"
        name = gpu.title if many else option.deployment.label.removesuffix(f" · {gpu.id}")
        rows.append(Row(f"{gpu.id}-{len(rows)}", name, role, option, gpu))
    return tuple(rows)


def _one_a_gpu(rows: tuple[Row, ...]) -> list[Row]:
    return list({row.gpu.id: row for row in reversed(rows)}.values())[::-1]


def headline(fleet: Fleet, rows: tuple[Row, ...]) -> str:
    """The answer in one sentence."""
    if not rows:
        return f"Nothing fits: every route on {fleet.gpu} was refused."
    first = rows[0]
    if not fleet.feasible:
        missed = [check for check in first.option.checks if check.ok is False]
        gap = words.joined(f"{c.name} {c.found.removesuffix(' predicted')} where {c.limit} was asked" for c in missed)
        return f"Nothing is predicted to keep the SLO. Nearest is {first.option.deployment.label}: {gap}."
    price = first.option.price
    cost = f", about {money(price.usd_per_million_tokens)} a million output tokens" if price.usd_per_hour else ""
    count = words.counted(first.option.num_gpus, "GPU")
    return f"First to try: {first.recipe} on {first.gpu.title}. {count} for {load_words(fleet.load)}{cost}."


def load_words(text: str) -> str:
    """``16 users at once`` for ``c=16``, ``4 requests a second`` for ``4/s``."""
    if text.startswith("c="):
        return words.load(Load(concurrency=int(text[2:])))
    return words.load(Load(rate_per_s=float(text.removesuffix("/s")))) if text.endswith("/s") else text


def fleet_charts(fleet: Fleet, rows: tuple[Row, ...]) -> tuple[Chart, ...]:
    """Cost against latency, then how fast one user is served by each."""
    return (pareto_chart(fleet, rows), speed_chart(fleet, rows))


def pareto_chart(fleet: Fleet, rows: tuple[Row, ...]) -> Chart:
    """Dollars a million tokens against TTFT and TPOT at the traffic's heaviest load: lower left is better."""
    title = "Cost against latency"
    priced = [row for row in rows if row.option.meets and row.option.price.usd_per_million_tokens]
    if len(priced) < 2:
        return Chart("pareto", title, absent="It takes two that keep the SLO and whose price is known.")
    panels = [_pareto_panel(fleet, priced, metric) for metric in ("ttft", "tpot")]
    edge = {dot["id"] for panel in panels for dot in panel["frontier"]}
    head = (
        "",
        "Option",
        "GPUs",
        "$/M tokens",
        "$/hour",
        f"TTFT at {fleet.load}",
        f"TPOT at {fleet.load}",
        "On a frontier",
    )
    table = tuple(
        (
            row.name,
            row.recipe,
            str(row.option.num_gpus),
            money(row.option.price.usd_per_million_tokens),
            money(row.option.price.usd_per_hour),
            words.seconds(_loaded(row, "ttft")),
            words.seconds(_loaded(row, "tpot")),
            "yes" if row.id in edge else "no",
        )
        for row in priced
    )
    left_out = [row.name for row in rows if row.option.meets and row not in priced]
    unpriced = f" Not drawn, since nobody's price is known: {words.joined(left_out)}." if left_out else ""
    how = (
        f"Dollars a million output tokens and mean latencies at {load_words(fleet.load)}, all predicted. Lower and "
        f"further left is better; the stepped line joins those that nothing beats in both.{unpriced}"
    )
    return Chart("pareto", title, how, _pareto_says(priced, edge), "pareto", {"panels": panels}, Table(head, table))


def _pareto_says(priced: list[Row], edge: set[str]) -> str:
    cheapest = min(priced, key=lambda row: row.option.price.usd_per_million_tokens or 0.0)
    fastest = min((row for row in priced if row.id in edge), key=lambda row: _loaded(row, "tpot"))
    if cheapest is fastest:
        return f"{cheapest.name} is cheapest and fastest at once."
    gain = words.times(_loaded(cheapest, "tpot"), _loaded(fastest, "tpot"))
    low, high = (row.option.price.usd_per_million_tokens or 1.0 for row in (cheapest, fastest))
    times = words.times(high, low)
    return f"{cheapest.name} is cheapest; {fastest.name} writes {gain} times as fast at {times} times its price."


def _pareto_panel(fleet: Fleet, rows: list[Row], metric: str) -> Data:
    long = {"ttft": "Time to first token (TTFT)", "tpot": "Time per output token (TPOT)"}[metric]
    dots = [
        {
            "id": row.id, "name": row.short, "role": row.role, "x": _loaded(row, metric) * _MS,
            "y": row.option.price.usd_per_million_tokens, "tip": _tip(fleet, row),
        }
        for row in rows
    ]  # fmt: skip
    limits = [
        {"value": limit.limit * _MS, "label": f"{limit.name} ≤ {words.seconds(limit.limit)}", "at_least": False}
        for limit in fleet.slo.latency_limits
        if limit.metric == metric
    ]
    return {
        "title": f"$ a million tokens against {long}",
        "label": f"← less is better, {metric.upper()} at {fleet.load}, ms",
        "dots": dots,
        "limits": limits,
        "frontier": frontier(dots, more_is_better=False),
    }


def _tip(fleet: Fleet, row: Row) -> str:
    option = row.option
    return (
        f"{row.gpu.title}\n{row.recipe}\n{words.counted(option.num_gpus, 'GPU')} for {fleet.load}: "
        f"{money(option.price.usd_per_hour)} an hour\n{money(option.price.usd_per_million_tokens)} a million tokens\n"
        f"TTFT {words.seconds(_loaded(row, 'ttft'))}, TPOT {words.seconds(_loaded(row, 'tpot'))}\npredicted"
    )


def _loaded(row: Row, metric: str) -> float:
    speed = row.option.loaded or row.option.light
    return (speed.ttft_s if metric == "ttft" else speed.tpot_s).value


def speed_chart(fleet: Fleet, rows: tuple[Row, ...], most: int = 24) -> Chart:
    """TPOT of a single user with its range and its floor, fastest first."""
    title = "How fast one user is served"
    if not rows:
        return Chart("speed", title, absent="Nothing fits.")
    chosen = sorted(rows, key=lambda row: row.option.light.tpot_s.value)[:most]
    limits = [
        {"value": limit.limit * _MS, "label": f"{limit.name} ≤ {words.seconds(limit.limit)}", "at_least": False}
        for limit in fleet.slo.latency_limits
        if limit.metric == "tpot"
    ]
    data = [
        {
            "id": row.id, "name": row.name, "role": row.role, "value": row.option.light.tpot_s.value * _MS,
            "lo": row.option.light.tpot_s.low * _MS, "hi": row.option.light.tpot_s.high * _MS,
            "mark": row.option.light.tpot_floor_s * _MS, "text": f"{words.seconds(row.option.light.tpot_s.value)}",
            "tip": f"{row.gpu.title}\n{row.recipe}\nTPOT {span(row.option.light.tpot_s)}, floor "
            f"{words.seconds(row.option.light.tpot_floor_s)}\npredicted",
        }
        for row in chosen
    ]  # fmt: skip
    panel = {"title": "", "unit": "ms", "log": True, "bar": False, "limits": limits, "rows": data}
    head = ("", "Option", "TPOT", "Range", "Floor", "TTFT", "Tokens/s")
    table = tuple(
        (
            row.name,
            row.recipe,
            words.seconds(row.option.light.tpot_s.value),
            span(row.option.light.tpot_s),
            words.seconds(row.option.light.tpot_floor_s),
            span(row.option.light.ttft_s),
            words.number(row.option.light.tokens_per_s_per_user.value),
        )
        for row in rows
    )
    left = f" The {most} fastest of {len(rows)}." if len(rows) > most else ""
    how = (
        "Time per output token of a single user: dot predicted, line its range, upright tick the floor, which is the "
        f"weights over the memory's peak bandwidth.{left}"
    )
    return Chart("speed", title, how, "", "rows", {"panels": [panel]}, Table(head, table))


def refusal_groups(
    fleet: Fleet, reasons: Mapping[str, Reason]
) -> list[tuple[str, str, str, list[tuple[str, list[Refusal]]]]]:
    """(title, code, way out, sentences with their routes), the largest group first."""
    by_code: dict[str, dict[str, list[Refusal]]] = {}
    for refusal in fleet.refused:
        by_code.setdefault(refusal.code, {}).setdefault(refusal.reason, []).append(refusal)
    groups = []
    for code, sentences in by_code.items():
        known = reasons.get(code)
        fix = next((r.fix for same in sentences.values() for r in same if r.fix), "") or ""
        title = known.title if known is not None else code.replace("_", " ").lower()
        groups.append((title, code, fix, list(sentences.items())))
    return sorted(groups, key=lambda group: -sum(len(same) for _, same in group[3]))


def _facts(gpu: GpuSpec) -> list[tuple[str, str, Sourced[int] | Sourced[float], str]]:
    """(name, value, fact, title of its best source) of what the arithmetic took."""
    rows: list[tuple[str, Sourced[int] | Sourced[float] | None, str]] = [
        ("Memory, as a driver shows it", gpu.reported_memory_bytes or gpu.memory_bytes, "B"),
        ("Memory bandwidth", gpu.memory_bandwidth_bytes_s, "B/s"),
        *(
            (f"Dense {dtype} rate", gpu.dense_flops.get(dtype), "FLOP/s")
            for dtype in ("bf16", "fp16", "fp8", "fp4", "int8")
        ),
        ("NVLink, both directions", gpu.nvlink_bytes_s, "B/s"),
        ("Power limit", gpu.tdp_w, "W"),
    ]
    return [
        (name, quantity(Term(name=name, value=float(fact.value), unit=unit, formula="")), fact, _best_source(gpu, fact))
        for name, fact, unit in rows
        if fact is not None
    ]


def _best_source(gpu: GpuSpec, fact: Sourced[int] | Sourced[float]) -> str:
    known = [gpu.source(source_id) for source_id in fact.sources]
    best = next((source for source in known if source.status == fact.status), known[0] if known else None)
    return f"{best.title}, read {best.read}" if best is not None else ""
