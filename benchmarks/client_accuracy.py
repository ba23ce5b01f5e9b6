"""How much does the load generator add to what it measures? A mock's known latencies, measured by the product.

    python benchmarks/client_accuracy.py [--streams 1 50 200 500] [--seconds 8] [--output benchmarks/records/…]

The mock (tests/mock_engine.py) runs in a process of its own on one core, the client on another: first token after 50
ms, then one every 10 ms, 100 tokens. Users start spread over one request's time. Two errors are given, both in
milliseconds: ``error`` is the client's time against the *nominal* one and includes the mock's own lateness;
``client_delay`` is from the moment the mock wrote a token (it says so inside the event; both processes read one
clock) to the moment the client took its arrival time, so it holds the kernel and the client alone. ``connect`` is
from a request's moment to when it was sent.

On a machine where others work too, ``chrt -f 5 python benchmarks/client_accuracy.py`` (as root) keeps them out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_optimizer.loadgen import level
from model_optimizer.loadgen.client import Shot
from model_optimizer.loadgen.drive import Target, run_loads
from model_optimizer.metrics.samples import distribution
from model_optimizer.records.measurement import Distribution
from model_optimizer.records.workload import SLO, TrafficProfile

MOCK = Path(__file__).parents[1] / "tests" / "mock_engine.py"
TTFT_MS, ITL_MS, TOKENS = 50.0, 10.0, 100
REQUEST_S = (TTFT_MS + ITL_MS * (TOKENS - 1)) / 1e3
MARK = b'"sent_s":'
COLUMNS = ("ttft_error_ms", "itl_error_ms", "client_delay_first_token_ms", "connect_ms")
SCHEDULING = {os.SCHED_OTHER: "normal", os.SCHED_FIFO: "real-time, first in first out"}


class StampedShot(Shot):
    """Also notes how long each token was on its way."""

    first_delays_s: list[float] = []
    delays_s: list[float] = []

    def take(self, payload: bytes, arrived_s: float) -> None:
        """As ``Shot.take``, and reads the mock's stamp."""
        at = payload.find(MARK)
        if at >= 0 and self.is_counted:
            delay_s = arrived_s - float(payload[at + len(MARK) : payload.index(b",", at)])
            (self.delays_s if self.chunk_s else self.first_delays_s).append(delay_s)
        super().take(payload, arrived_s)


def measure(streams: int, seconds: float, core: int) -> dict[str, Any]:
    """One row: ``streams`` users for ``seconds``."""
    flags = ["--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--stamp"]
    mock = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, str(MOCK), *flags], stdout=subprocess.PIPE, text=True
    )
    assert mock.stdout is not None
    url = f"http://{mock.stdout.readline().split()[-1]}"
    StampedShot.first_delays_s.clear()
    StampedShot.delays_s.clear()
    traffic = TrafficProfile.model_validate(
        {
            "prompt_tokens": {128: 1.0},
            "output_tokens": TOKENS,
            "loads": [streams],
            "seconds_per_load": seconds,
            "max_requests_per_load": 100_000,
        }
    )
    try:
        run = run_loads(Target(base_url=url), traffic, SLO(), emit=lambda kind, **fields: None)
    finally:
        mock.kill()
        mock.wait()
        mock.stdout.close()
    (found,), (traces,) = run.results, run.traces
    return {
        "streams": streams,
        "requests": found.num_requests,
        "errors": found.num_errors,
        "requests_per_s": round(found.request_rate_per_s, 1),
        "ideal_requests_per_s": round(streams / REQUEST_S, 1),
        "ttft_error_ms": error(found.ttft_s, TTFT_MS),
        "itl_error_ms": error(found.itl_s, ITL_MS),
        "tpot_error_ms": error(found.tpot_s, ITL_MS),
        "client_delay_first_token_ms": error(distribution(StampedShot.first_delays_s), 0.0),
        "connect_ms": error(distribution([trace.sent_s - trace.scheduled_s for trace in traces]), 0.0),
        "client_delay_token_ms": error(distribution(StampedShot.delays_s), 0.0),
        "client_cpu_share": round(found.client.cpu_share, 3),
        "client_verdict": found.client.verdict,
    }


def error(found: Distribution | None, truth_ms: float) -> dict[str, float]:
    """Percentiles less the truth, milliseconds."""
    if found is None:
        return {}
    return {name: round(getattr(found, name) * 1e3 - truth_ms, 2) for name in ("p50", "p90", "p99", "max")}


def cpu_name() -> str:
    """The processor as the kernel names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    pairs = (row[name] for name in COLUMNS)
    print(
        f"{row['streams']:7d} {row['requests_per_s']:6.1f} {row['ideal_requests_per_s']:6.1f}",
        *(f"{pair['p50']:7.2f} /{pair['p99']:7.2f}" for pair in pairs),
        f"{row['client_cpu_share']:5.0%}  {row['client_verdict']}",
        sep=" | ",
        flush=True,
    )


def record(rows: list[dict[str, Any]], load_before: float) -> dict[str, Any]:
    """The rows with all that they depend on."""
    policy = SCHEDULING.get(os.sched_getscheduler(0), "other")
    return {
        "what": "client accuracy against a mock engine",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "truth": {"ttft_ms": TTFT_MS, "itl_ms": ITL_MS, "output_tokens": TOKENS},
        "host": {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release()},
        "load_average_1_min": {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2)},
        "scheduling": {"policy": policy, "niceness": os.nice(0)},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("model-optimizer", "orjson")},
        },
        "rows": rows,
    }


def main() -> None:
    """Measure all rows, print them, write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 50, 200, 500])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--mock-core", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.client_core})
    setattr(level, "Shot", StampedShot)  # noqa: B010 (the product's own path, with one more number noted)
    load_before, rows = os.getloadavg()[0], []
    print("streams  req/s  ideal | TTFT error ms    | ITL error ms     | client delay ms  | connect ms       |   CPU")
    for streams in options.streams:
        rows.append(measure(streams, options.seconds, options.mock_core))
        show(rows[-1])
        time.sleep(1.0)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record(rows, load_before), indent=2) + "\n")


if __name__ == "__main__":
    main()
