"""How long does a plan over every GPU, engine and scheme take? CPU seconds, each in a fresh process.

    python benchmarks/plan_speed.py [--repeats 5] [--output benchmarks/records/…]

``start`` is what a command pays before it plans: imports and reading the knowledge base. ``plan`` is ``plan_fleet``
over all GPUs, first of its process, so nothing is remembered from an earlier plan. CPU time, which other work on the
machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODELS = ("LLAMA_31_8B", "QWEN3_32B", "QWEN3_30B_A3B", "GPT_OSS_20B", "DEEPSEEK_V3")
PLAN = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
begin = time.process_time()
from model_optimizer.kb import query
from model_optimizer.kb.ladder import rungs
from model_optimizer.planning.fleet import plan_fleet
from model_optimizer.records.workload import SLO
from tests.sizing import models
for known in (query.gpus, query.engines, query.schemes, query.reasons, query.traffic_profiles, query.compat):
    known()
query.state("fp8", "vllm", "l20"), query.prices("l20"), rungs(query.gpu("l20"))
ready = time.process_time()
model = getattr(models, sys.argv[2])
slo = SLO.model_validate({"ttft_p95": "2 s", "tpot_p95": "60 ms"})
fleet = plan_fleet(model, "all", query.traffic("rag"), slo, objective="cost", max_model_len=10240)
done = time.process_time()
print(json.dumps({"start": ready - begin, "plan": done - ready, "considered": fleet.considered}))
"""


def measure(model: str, repeats: int) -> dict[str, Any]:
    """Median and extremes of the CPU seconds, and how many combinations were worked out."""
    runs = []
    for _ in range(repeats):
        command = [sys.executable, "-c", PLAN, str(ROOT), model]
        runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    row: dict[str, Any] = {"considered": runs[0]["considered"]}
    for name in ("start", "plan"):
        values = [run[name] for run in runs]
        row[name] = {
            "median": round(statistics.median(values), 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
        }
    return row


def main() -> None:
    """Measure every model, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = {model: measure(model, options.repeats) for model in MODELS}
    print(f"{'model':<16}{'combinations':>13}{'start-up, s':>13}{'plan, s':>10}")
    for model, row in rows.items():
        print(f"{model:<16}{row['considered']:>13}{row['start']['median']:>13.2f}{row['plan']['median']:>10.2f}")
    if options.output is not None:
        record = {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "model_optimizer": version("model-optimizer"),
            "unit": "CPU seconds",
            "models": rows,
        }
        options.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
