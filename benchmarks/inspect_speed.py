"""How long does it take to read what a checkpoint is? Headers of the largest public models, made of sparse files.

    python benchmarks/inspect_speed.py [--repeats 9] [--output benchmarks/records/…]

``warm`` is ``read_checkpoint`` in a running process; ``process`` a fresh Python that imports it and reads, as a command
would. ``cpu`` is the CPU time, which other work on the machine hardly changes. Seconds; the files are in the
page cache in both cases, since they were just written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from model_optimizer.host.checkpoint import read_checkpoint  # noqa: E402
from tests.host.large import deepseek_v3, gguf_405b, llama_405b  # noqa: E402

MODELS = {
    "Llama 3.1 405B, 191 files": llama_405b,
    "DeepSeek-V3 FP8, 163 files, 90427 tensors": deepseek_v3,
    "Llama 3.1 405B, one GGUF file": gguf_405b,
}
READ = """
import sys
from pathlib import Path
from model_optimizer.host.checkpoint import read_checkpoint
read_checkpoint(Path(sys.argv[1]))
"""


def spread(times: list[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"median": round(statistics.median(times), 3), "min": round(min(times), 3), "max": round(max(times), 3)}


def measure(path: Path, repeats: int) -> dict[str, Any]:
    """One row."""
    warm, warm_cpu, process, process_cpu = [], [], [], []
    for _ in range(repeats):
        start, cpu = time.perf_counter(), time.process_time()
        spec = read_checkpoint(path)
        warm.append(time.perf_counter() - start)
        warm_cpu.append(time.process_time() - cpu)
    for _ in range(repeats):
        start, cpu = time.perf_counter(), children_cpu_s()
        subprocess.run([sys.executable, "-c", READ, str(path)], check=True)
        process.append(time.perf_counter() - start)
        process_cpu.append(children_cpu_s() - cpu)
    return {
        "parameters": spec.num_parameters,
        "weight_bytes": spec.weight_bytes,
        "warm_s": spread(warm),
        "warm_cpu_s": spread(warm_cpu),
        "process_s": spread(process),
        "process_cpu_s": spread(process_cpu),
    }


def children_cpu_s() -> float:
    """CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_name() -> str:
    """As the kernel calls it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, build) in enumerate(MODELS.items()):
            rows[name] = measure(build(Path(folder) / f"model-{number}.gguf"), options.repeats)
            print(f"{name}: {rows[name]}")
    record = {
        "what": "time to read a checkpoint's headers and check them",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]},
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("model-optimizer", "orjson")}},
        "repeats": options.repeats,
        "rows": rows,
    }
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
