"""Run the demo and write its numbers to a dated record: what the README quotes.

    python benchmarks/demo_record.py            # runs the demo in a fresh home, then again, and writes the record
    python benchmarks/demo_record.py --home H   # the same in an existing home (tools already there)

The record holds host, versions, and for baseline and candidates: output tokens/s, TTFT, TPOT, peak memory, perplexity,
KL, and the ratios of each candidate to the baseline, all from one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_optimizer.records.measurement import AccuracyScore, Measurement
from model_optimizer.records.run import RunManifest

RECORDS = Path(__file__).parent / "records"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path)
    home = parser.parse_args().home or Path(tempfile.mkdtemp(prefix="model-optimizer-demo-"))
    load_before = os.getloadavg()[0]
    first = run(home)
    second = run(home)
    folder = next((home / "runs").iterdir())
    manifest = RunManifest.from_json((folder / "manifest.json").read_bytes())
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "model-optimize run --demo",
        "first_run_s": round(first, 1),
        "second_run_s": round(second, 1),
        "load_average_before": round(load_before, 2),
        "host": manifest.host and manifest.host.model_dump(mode="json", exclude={"free_disk_bytes"}),
        "product_version": manifest.product_version,
        "tools": manifest.tools,
        "traffic": manifest.spec.traffic.model_dump(mode="json"),
        "winner": manifest.winning and manifest.winning.candidate.label,
        "rows": rows(manifest),
    }
    stem = RECORDS / f"demo-{datetime.now(UTC):%Y-%m-%d}"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".md").write_text(markdown(record))
    print(stem.with_suffix(".md").read_text())


def run(home: Path) -> float:
    """Seconds of one demo run in that home."""
    started = time.monotonic()
    command = [sys.executable, "-m", "model_optimizer", "run", "--demo"]
    subprocess.run(command, env={**os.environ, "MODEL_OPTIMIZER_HOME": str(home)}, check=True)
    return time.monotonic() - started


def rows(manifest: RunManifest) -> list[dict[str, Any]]:
    base = manifest.baseline
    assert base is not None
    found = [row(base.candidate.label, "baseline", base.measurement, None, None)]
    if base.reference is not None:
        found[0]["perplexity"] = base.reference.perplexity
    for verdict in manifest.verdicts:
        measured = verdict.measurement
        found.append(row(verdict.candidate.label, verdict.outcome, measured, verdict.accuracy, base.measurement))
    return found


def row(
    label: str, outcome: str, measured: Measurement | None, score: AccuracyScore | None, base: Measurement | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"candidate": label, "outcome": outcome}
    if measured is not None and measured.server is not None:
        load = measured.loads[0]
        found |= {
            "load": str(load.load),
            "requests": load.num_requests,
            "output_tokens_per_s": load.output_tokens_per_s,
            "ttft_p50_ms": load.ttft_s.p50 * 1e3 if load.ttft_s else None,
            "tpot_p50_ms": load.tpot_s.p50 * 1e3 if load.tpot_s else None,
            "peak_memory_mib": measured.server.peak_memory_bytes / 2**20,
            "client_verdict": load.client.verdict,
        }
    if measured is not None and base is not None and measured.server is not None and base.server is not None:
        found["speed_ratio"] = measured.loads[0].output_tokens_per_s / base.loads[0].output_tokens_per_s
        found["memory_saved"] = 1 - measured.server.peak_memory_bytes / base.server.peak_memory_bytes
    if score is not None:
        found |= {
            "perplexity": score.perplexity,
            "perplexity_rise": score.perplexity_rise,
            "kl_nats": score.kl_mean,
            "top1_agreement": score.top1_agreement,
        }
    return found


def markdown(record: dict[str, Any]) -> str:
    host = record["host"]
    lines = [
        f"# Demo, {record['date'][:10]}",
        "",
        f"{host['cpu_name']}, {host['cpu_cores']} cores, {host['memory_bytes'] / 2**30:.0f} GiB, {host['os']}; "
        f"load average before: {record['load_average_before']}. First run {record['first_run_s']:.0f} s, "
        f"second {record['second_run_s']:.1f} s. Winner: {record['winner']}.",
        "",
        "| candidate | outcome | tok/s | of baseline | TTFT p50 | TPOT p50 | peak memory | less | perplexity | KL |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for item in record["rows"]:
        cells = [
            item["candidate"],
            item["outcome"].replace("_", " "),
            number(item.get("output_tokens_per_s"), "{:.1f}"),
            number(item.get("speed_ratio"), "{:.1f}x"),
            number(item.get("ttft_p50_ms"), "{:.0f} ms"),
            number(item.get("tpot_p50_ms"), "{:.1f} ms"),
            number(item.get("peak_memory_mib"), "{:.0f} MiB"),
            number(item.get("memory_saved"), "{:.0%}"),
            number(item.get("perplexity"), "{:.3f}"),
            number(item.get("kl_nats"), "{:.4f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


if __name__ == "__main__":
    main()
