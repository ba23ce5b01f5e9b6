"""How far off is the speed estimate? Our prediction for what was measured in public, row by row.

    python benchmarks/prediction.py [--silicon silicon_sample.csv] [--write]

The rows are in prediction.yaml. ``--silicon`` adds every row of NVIDIA's measurements (in the Python package
``aiconfigurator-core``, under ``systems/``) that a model and a GPU here answer to; of those only errors are recorded.
``--write`` puts the record into benchmarks/records/prediction-DATE.json and .md; tests recompute it from the rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.measured_rows import METRICS, Metric, Row, read_file, spec_of  # noqa: E402
from benchmarks.silicon_sample import read_silicon  # noqa: E402

from model_optimizer.kb import query  # noqa: E402
from model_optimizer.planning import devices  # noqa: E402
from model_optimizer.records.base import Record  # noqa: E402
from model_optimizer.records.sizing import MemoryPlan, Parallelism  # noqa: E402
from model_optimizer.sizing.memory import plan_memory  # noqa: E402
from model_optimizer.sizing.speed import Replica  # noqa: E402

RECORDS = ROOT / "benchmarks" / "records"

NOISE = 0.05
"""Single runs of the same thing differ by this and more: pairs that are closer have no order to get right."""
QUEUED = 0.15
"""Share of its time that a request waits for its first token, from which on it was not running with all the others."""


class Prediction(Record):
    """What the arithmetic says of a row. ``impossible`` lists every reason to call it so: none may be given."""

    tpot: float
    ttft: float
    output_tokens_per_s: float
    tpot_spread: float
    running: float
    fits: bool
    impossible: tuple[str, ...]

    def of(self, metric: Metric) -> float:
        """By name."""
        return float(getattr(self, metric))


def replica_of(row: Row) -> tuple[Replica, MemoryPlan]:
    """The row's replica as planning would build it, and what its memory holds."""
    spec, gpu, engine = spec_of(row.model), query.gpu(row.gpu), query.engine(row.engine)
    scheme = query.scheme(row.scheme)
    state = query.state(row.scheme, row.engine, row.gpu)
    flops = devices.compute_flops(gpu, scheme, state)
    if flops is None:
        raise ValueError(f"no rate is known for {row.title}")
    split = Parallelism(tensor=row.tensor)
    as_stored = scheme.id in ("bf16", "fp16") or spec.quantized_as is not None
    memory = plan_memory(
        spec,
        total_bytes=gpu.usable_memory_bytes,
        engine=devices.engine_memory(engine, gpu, split),
        scheme=None if as_stored else scheme,
        split=split,
        kv_bytes_per_element=1.0 if row.kv == "fp8" else 2.0,
        live_tokens=row.mix.live_tokens,
    )
    hardware = devices.device(gpu, flops)._replace(peak_flops=devices.floor_flops(gpu, scheme, state))
    how = devices.efficiency(engine, state)
    return Replica(
        spec, memory.weights, hardware, how, kv_bytes_per_token=memory.kv_bytes_per_token, split=split
    ), memory


def predict(row: Row) -> Prediction:
    """Our numbers for the row. Users beyond what the KV cache holds wait: TTFT = c / rate − time of an answer."""
    replica, memory = replica_of(row)
    running = float(max(1, min(row.concurrency, memory.max_sequences)))
    steady, answer = replica.steady(row.mix), row.mix.output_tokens
    if row.kind == "decode":
        tpot = replica.decode_step_s(running, row.mix.live_tokens)
        ttft = steady.at(1).ttft_s
        rate = row.concurrency / (ttft + tpot * (answer - 1))
    else:
        speed = steady.at(running)
        tpot, rate = speed.tpot_s, speed.request_rate_per_s
        ttft = row.concurrency / rate - answer * tpot
    return Prediction(
        tpot=tpot,
        ttft=ttft,
        output_tokens_per_s=rate * answer,
        tpot_spread=replica.how.spread,
        running=running,
        fits=memory.max_sequences >= row.concurrency,
        impossible=tuple(_impossible(row, replica, memory)),
    )


def _impossible(row: Row, replica: Replica, memory: MemoryPlan) -> Iterable[str]:
    """Everything by which a plan would refuse a thing that was measured."""
    for known in {row.version, None}:
        state = query.state(row.scheme, row.engine, row.gpu, known)
        if not state.may_try:
            yield f"{state.code}: {state.sentence}"
    if not memory.weights_fit:
        yield "weights do not fit"
    longest = max(prompt for prompt, _, _ in row.mix.classes) + row.mix.output_tokens
    if memory.longest_context < longest:
        yield f"no room for one sequence of {longest:.0f} tokens"
    tpot, ttft = (row.tpot_ms or 1e9) / 1e3, (row.ttft_ms or 1e9) / 1e3
    if replica.tpot_floor_s() > tpot:
        yield f"TPOT floor {replica.tpot_floor_s() * 1e3:.1f} ms"
    if replica.ttft_floor_s(row.mix.prompt_tokens) > ttft:
        yield f"TTFT floor {replica.ttft_floor_s(row.mix.prompt_tokens) * 1e3:.1f} ms"


def compare(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Row by row: measured, predicted, predicted / measured − 1."""
    found = []
    for row in rows:
        said = predict(row)
        pairs = {metric: (value, said.of(metric)) for metric, value in row.measured.items()}
        found.append(
            {
                "row": row.title,
                "set": row.set,
                "use": row.use,
                "measured": {metric: _round(value) for metric, (value, _) in pairs.items()},
                "predicted": {metric: _round(value) for metric, (_, value) in pairs.items()},
                "error": {metric: round(value / true - 1, 3) for metric, (true, value) in pairs.items()},
                "in_range": _in_range(row, said),
                "limited": limited(row, said),
                "impossible": list(said.impossible),
            }
        )
    return found


def limited(row: Row, said: Prediction) -> bool:
    """True where requests waited long though the KV cache holds them all: a limit of the server that is not recorded
    was at work, so the batch behind the time per token is unknown.
    """
    if row.ttft_ms is None or row.tpot_ms is None:
        return False
    return said.fits and row.ttft_ms > QUEUED * (row.ttft_ms + row.mix.output_tokens * row.tpot_ms)


def _in_range(row: Row, said: Prediction) -> bool | None:
    true = row.measured.get("tpot")
    return None if true is None else said.tpot / (1 + said.tpot_spread) <= true <= said.tpot * (1 + said.tpot_spread)


def errors(compared: Sequence[dict[str, Any]], metric: str) -> dict[str, float]:
    """Median and 90th percentile of the absolute error, and the median with its sign."""
    values = [row["error"][metric] for row in compared if metric in row["error"]]
    if not values:
        return {"rows": 0}
    sizes = sorted(abs(value) for value in values)
    return {
        "rows": len(values),
        "median_absolute": round(statistics.median(sizes), 3),
        "p90_absolute": round(sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))], 3),
        "median_signed": round(statistics.median(values), 3),
    }


def order(compared: Sequence[dict[str, Any]], metric: str) -> tuple[int, int]:
    """Pairs of rows that the prediction puts in the measured order, and all pairs that the measurement tells apart."""
    points = [(row["measured"][metric], row["predicted"][metric]) for row in compared if metric in row["measured"]]
    pairs = [(a, b) for a, b in itertools.combinations(points, 2) if max(a[0], b[0]) > min(a[0], b[0]) * (1 + NOISE)]
    return sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs), len(pairs)


def summary(everything: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the record claims. Rows with an unknown limit count in nothing but ``called_impossible``."""
    compared = [row for row in everything if not row["limited"]]
    held = [row for row in compared if row["use"] == "held-out"]
    judged = [row["in_range"] for row in compared if row["in_range"] is not None]
    left_out = len(everything) - len(compared)
    found: dict[str, Any] = {"rows": len(compared), "held_out": len(held), "limited_by_the_server": left_out}
    for metric in METRICS:
        right, pairs = order(compared, metric)
        found[metric] = {
            "all": errors(compared, metric),
            "held_out": errors(held, metric),
            "pairs_in_order": round(right / pairs, 3) if pairs else None,
            "pairs": pairs,
        }
    found["tpot_in_predicted_range"] = round(sum(judged) / len(judged), 3) if judged else None
    found["called_impossible"] = [row["row"] for row in everything if row["impossible"]]
    return found


def wide(rows: Sequence[Row]) -> dict[str, Any]:
    """Errors over the public rows by GPU, model, engine and scheme, and how often two configurations for the same
    traffic (same GPU, model and lengths) come in the right order of tokens a second per GPU; ``same_load`` pairs also
    have the same number of users, so that engine, ranks and scheme alone make the difference.
    """
    compared = compare(rows)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    traffic: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    load: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row, result in zip(rows, compared, strict=True):
        if result["limited"]:
            continue
        groups.setdefault((row.gpu, row.model, row.engine, row.scheme), []).append(result)
        per_gpu = {key: {"x": result[key]["output_tokens_per_s"] / row.tensor} for key in ("measured", "predicted")}
        asked = (row.gpu, row.model, row.prompt_tokens, row.output_tokens, row.kind)
        traffic.setdefault(asked, []).append(per_gpu)
        load.setdefault((*asked, row.concurrency), []).append(per_gpu)
    found = summary(compared)
    for name, sets in (("same_traffic", traffic), ("same_load", load)):
        counts = [order(same, "x") for same in sets.values()]
        right, pairs = sum(count[0] for count in counts), sum(count[1] for count in counts)
        found |= {f"{name}_pairs": pairs, f"{name}_pairs_in_order": round(right / pairs, 3) if pairs else None}
    return {
        **found,
        "groups": [
            {
                "what": " · ".join(key),
                "use": "fit" if all(row["use"] == "fit" for row in same) else "held-out",
                "tpot": errors(same, "tpot"),
                "ttft": errors(same, "ttft"),
            }
            for key, same in sorted(groups.items())
        ],
    }


LIMITED = (
    "requests waited long for the first token though the KV cache holds them all, so a limit of the server was at work "
    "that is not recorded; not judged"
)


def make_record(silicon: Path | None) -> dict[str, Any]:
    """The whole record."""
    compared = compare(read_file().all_rows())
    constants = {name: getattr(devices, name)._asdict() for name in ("FITTED", "NARROW", "IN_SOFTWARE")}
    record: dict[str, Any] = {
        "what": "predicted against publicly measured latency and throughput",
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), "model-optimizer": version("model-optimizer")},
        "constants": constants,
        "summary": summary(compared),
        "rows": compared,
    }
    if silicon is not None:
        origin, lines = read_silicon(silicon)
        rows = [Row.model_validate(line) for line in lines]
        record["wide"] = {"source": origin, **wide(rows)}
    return record


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    """Compute, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--silicon", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    record = make_record(options.silicon)
    text = as_markdown(record)
    print(text)
    if options.write:
        RECORDS.mkdir(exist_ok=True)
        name = f"prediction-{record['date']}"
        (RECORDS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        (RECORDS / f"{name}.md").write_text(text)


def as_markdown(record: dict[str, Any]) -> str:
    """The record for people."""
    total = record["summary"]
    lines = [
        "# Prediction against public measurements",
        "",
        f"{record['date']}. Errors are predicted / measured − 1. Made by `python benchmarks/prediction.py --write`.",
        "",
        f"* {total['rows']} rows, {total['held_out']} of them held out when the constants were fitted. "
        f"{total['limited_by_the_server']} more: {LIMITED}.",
        f"* Pairs less than {NOISE:.0%} apart in the measurement are not counted: single runs differ by more.",
    ]
    for metric, name in (("tpot", "TPOT"), ("ttft", "TTFT"), ("output_tokens_per_s", "Tokens a second")):
        part = total[metric]
        lines.append(
            f"* {name}: median absolute error {part['all']['median_absolute']:.0%} "
            f"({part['held_out']['median_absolute']:.0%} on held-out rows), "
            f"{part['pairs_in_order']:.1%} of {part['pairs']} pairs in the right order."
        )
    lines += [
        f"* The predicted range of TPOT holds {total['tpot_in_predicted_range']:.0%} of the measured values.",
        f"* Measured, but called impossible: {', '.join(total['called_impossible']) or 'none'}.",
        "",
        "| row | use | TPOT ms | predicted | error | TTFT ms | predicted | error | tokens/s | predicted | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        cells = []
        for metric, scale in (("tpot", 1e3), ("ttft", 1e3), ("output_tokens_per_s", 1.0)):
            if metric in row["error"]:
                true, said, off = row["measured"][metric], row["predicted"][metric], row["error"][metric]
                cells += [f"{true * scale:.4g}", f"{said * scale:.4g}", f"{off:+.0%}"]
            else:
                cells += ["", "", ""]
        use = "not judged" if row["limited"] else row["use"]
        lines.append(f"| {row['row']} | {use} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *_wide_markdown(record.get("wide")), ""])


def _wide_markdown(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    lines = [
        "",
        f"## {found['rows']} more rows",
        "",
        f"From {found['source']}. {found['limited_by_the_server']} more: {LIMITED}.",
        "",
        f"* Two configurations for the same traffic (GPU, model, lengths), by tokens a second per GPU: "
        f"{found['same_traffic_pairs_in_order']:.1%} of {found['same_traffic_pairs']} pairs in the right order.",
        f"* The same with the same number of users: {found['same_load_pairs_in_order']:.1%} of "
        f"{found['same_load_pairs']} pairs.",
        f"* Any two rows, by TPOT: {found['tpot']['pairs_in_order']:.1%} of {found['tpot']['pairs']} pairs.",
        f"* TPOT: median absolute error {found['tpot']['all']['median_absolute']:.0%}, "
        f"{found['tpot']['held_out']['median_absolute']:.0%} on {found['held_out']} held-out rows; "
        f"its predicted range holds {found['tpot_in_predicted_range']:.0%}.",
        f"* Measured, but called impossible: {'; '.join(found['called_impossible']) or 'none'}.",
        "",
        "| GPU · model · engine · scheme | use | rows | TPOT median | p90 | sign | TTFT median | sign |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group in found["groups"]:
        tpot, ttft = group["tpot"], group["ttft"]
        first = [f"{ttft['median_absolute']:.0%}", f"{ttft['median_signed']:+.0%}"] if ttft["rows"] else ["", ""]
        lines.append(
            f"| {group['what']} | {group['use']} | {tpot['rows']} | {tpot['median_absolute']:.0%} | "
            f"{tpot['p90_absolute']:.0%} | {tpot['median_signed']:+.0%} | {first[0]} | {first[1]} |"
        )
    return lines


if __name__ == "__main__":
    main()
