"""The simulated scheduler against llama.cpp on this machine: one calibration, then other slots, batches and loads.

    python benchmarks/simulator_llama.py MODEL.gguf PYTHON_WITH_XLLAMACPP        (about six minutes)

Adds its part to records/simulator-2026-12-01.json.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulator import _value, save

from model_optimizer.loadgen.drive import LoadRun, Target, run_loads
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.simulation.calibrate import calibration_plan, samples_from
from model_optimizer.simulation.config import scheduler_config
from model_optimizer.simulation.simulate import simulate
from model_optimizer.simulation.steps import fit, sample_s

WORKER = Path(__file__).parents[1] / "src/model_optimizer/workers/llama_cpp_server.py"
MAX_MODEL_LEN = 512
TRAFFIC = TrafficProfile.model_validate(
    {
        "prompt_tokens": {32: 0.6, 128: 0.3, 320: 0.1},
        "output_tokens": 24,
        "seconds_per_load": "10 s",
        "min_requests_per_load": 12,
        "seed": 3,
    }
)
CALIBRATED = {"n_parallel": 4, "n_ubatch": 512}
ASKED: tuple[tuple[dict[str, int], tuple[Load, ...]], ...] = (
    ({"n_parallel": 4, "n_ubatch": 512}, (Load(concurrency=2), Load(concurrency=8))),
    ({"n_parallel": 1, "n_ubatch": 512}, (Load(concurrency=4),)),
    ({"n_parallel": 2, "n_ubatch": 512}, (Load(concurrency=4), Load(rate_per_s=0.8))),
    ({"n_parallel": 8, "n_ubatch": 512}, (Load(concurrency=8), Load(rate_per_s=1.2))),
    ({"n_parallel": 8, "n_ubatch": 64}, (Load(concurrency=8),)),
)


@contextmanager
def serving(python: str, model: str, settings: dict[str, int]) -> Iterator[str]:
    """llama.cpp's server with these settings, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    slots = settings["n_parallel"]
    command = [python, str(WORKER), "--model", model, "--alias", "model", "--port", str(port)]
    command += ["--n-parallel", str(slots), "--n-ctx", str(slots * MAX_MODEL_LEN)]
    command += ["--n-threads", str(len(os.sched_getaffinity(0))), "--omp-wait-policy", "passive"]
    for name, value in {"n_batch": 2048, "n_ubatch": settings["n_ubatch"], "cache_ram_mib": 0}.items():
        command += ["--set", f"{name}={value}"]
    command += ["--set", "cache_prompt=false", "--set", "n_ctx_checkpoints=0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(300):
                time.sleep(0.2)
                try:
                    with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:
                        if reply.status == 200:
                            break
                except OSError:
                    continue
            yield url
        finally:
            server.send_signal(signal.SIGTERM)


def drive(url: str, traffic: TrafficProfile) -> LoadRun:
    """All loads of the profile."""
    return run_loads(Target(base_url=url), traffic, SLO(), emit=lambda *_, **__: None)


def main(model: str, python: str) -> None:
    """Calibrate, then ask and measure."""
    config = scheduler_config("llama.cpp", CALIBRATED, kv_tokens=None, max_model_len=MAX_MODEL_LEN)
    assert config is not None
    began = time.monotonic()
    measured = []
    with serving(python, model, CALIBRATED) as url:
        for traffic in calibration_plan(max_concurrency=CALIBRATED["n_parallel"], max_model_len=MAX_MODEL_LEN):
            start = time.monotonic()
            run = drive(url, traffic)
            measured += [(load, traces) for load, traces in zip(traffic.loads, run.traces, strict=True)]
            print(f"{traffic.id}: {time.monotonic() - start:.0f} s", flush=True)
    calibration_s = time.monotonic() - began
    samples = samples_from(measured)
    steps = fit(samples, config)
    print(f"calibrated in {calibration_s:.0f} s: {steps}")
    for sample in samples:
        print(f"  {sample.seconds * 1e3:.0f} ms, model {sample_s(steps, config, sample) * 1e3:.0f}: {sample}")
    rows = []
    for settings, loads in ASKED:
        asked = scheduler_config("llama.cpp", settings, kv_tokens=None, max_model_len=MAX_MODEL_LEN)
        assert asked is not None
        with serving(python, model, settings) as url:
            for load in loads:
                real = drive(url, TRAFFIC.model_copy(update={"loads": (load,)})).results[0]
                said = simulate(asked, steps, TRAFFIC, load, slo=SLO(), num_requests=200, seed=1)
                row: dict[str, object] = {"settings": settings, "load": str(load), "n": real.num_requests}
                for name in ("rate", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"):
                    a, b = _value(real, name), _value(said, name)
                    row[name] = {"measured": round(a, 4), "predicted": round(b, 4), "error": round(b / a - 1, 3)}
                rows.append(row)
                print(row, flush=True)
    save(
        "llama.cpp",
        {
            "calibration_s": round(calibration_s),
            "steps": steps.model_dump(),
            "samples": [sample.model_dump() for sample in samples],
            "loads": rows,
            "rank_correlation": {
                n: round(rank([r[n] for r in rows]), 3) for n in ("rate", "ttft_p50", "ttft_p99", "tpot_p50")
            },
        },
    )


def rank(values: list[dict[str, float]]) -> float:
    """Spearman's correlation of measured and predicted."""

    def ranks(name: str) -> list[int]:
        order = sorted(range(len(values)), key=lambda at: values[at][name])
        return [order.index(at) for at in range(len(values))]

    n = len(values)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(ranks("measured"), ranks("predicted"), strict=True)) / (n**3 - n)


if __name__ == "__main__":
    main(*sys.argv[1:3])
