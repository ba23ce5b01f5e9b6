"""The simulated scheduler against a real engine: calibrated on some loads, asked about others.

    python benchmarks/simulator.py                      the H200 record that is in this repository (seconds)
    python benchmarks/simulator.py --llama MODEL.gguf --python PYTHON     llama.cpp on this machine (minutes)

Writes records/simulator-2026-12-01.json; the two parts fill their own keys.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from model_optimizer.metrics.loads import summarize
from model_optimizer.records.measurement import LoadResult, RequestTrace
from model_optimizer.records.simulation import SchedulerConfig, StepModel
from model_optimizer.records.workload import SLO, Load, TrafficProfile
from model_optimizer.simulation.calibrate import refine, samples_from
from model_optimizer.simulation.simulate import CLIENT, Shape, Simulated, run_load
from model_optimizer.simulation.steps import fit

HERE = Path(__file__).parent
RECORD = HERE / "records" / "simulator-2026-12-01.json"
H200 = HERE / "records" / "h200-vllm-0.24.0-2026-12-01"
SEEDS = 5

TRAFFIC = TrafficProfile.model_validate(
    {
        "prompt_tokens": {128: 0.80, 512: 0.15, 2048: 0.05},
        "output_tokens": 128,
        "seconds_per_load": "20 s",
        "min_requests_per_load": 16,
        "max_requests_per_load": 4000,
        "seed": 1,
    }
)
KV_TOKENS = {"bf16": 816_640, "fp8": 863_520}  # as the servers' logs have them

Measured = dict[int, tuple[LoadResult, tuple[RequestTrace, ...]]]


def h200_config(scheme: str) -> SchedulerConfig:
    """vLLM 0.24.0's defaults on an H200, as its log shows them."""
    return SchedulerConfig(
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        num_kv_tokens=KV_TOKENS[scheme],
        max_model_len=4096,
        graph_tokens=512,
    )


def h200_measured(scheme: str) -> Measured:
    """Results and traces by the number of users."""
    with gzip.open(H200 / f"{scheme}-results.json.gz") as file:
        saved = json.load(file)
    return {
        result["load"]["concurrency"]: (
            LoadResult.model_validate(result),
            tuple(RequestTrace.model_validate(trace) for trace in traces),
        )
        for result, traces in zip(saved["results"], saved["traces"], strict=True)
    }


def calibrated(scheme: str, measured: Measured, users: tuple[int, ...], refined: tuple[int, ...]) -> StepModel:
    """The step model from the requests of these loads; the serving process's times from the results of ``refined``."""
    config = h200_config(scheme)
    samples = samples_from([(Load(concurrency=c), measured[c][1]) for c in users])
    return refine(fit(samples, config), config, TRAFFIC, [measured[c][0] for c in refined])


def rows(
    config: SchedulerConfig, steps: StepModel, traffic: TrafficProfile, measured: Measured
) -> list[dict[str, object]]:
    """Predicted and measured numbers of each load: the median over some seeds of the users' starts."""
    found: list[dict[str, object]] = []
    for users, (real, _) in measured.items():
        runs = [_one(config, steps, traffic, real, seed) for seed in range(SEEDS)]
        row: dict[str, object] = {"users": users}
        for name in ("rate", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"):
            values = sorted(_value(run, name) for run in runs)
            row[name] = {
                "measured": round(_value(real, name), 5),
                "predicted": round(values[SEEDS // 2], 5),
                "error": round(values[SEEDS // 2] / _value(real, name) - 1.0, 3),
                "range": [round(values[0], 5), round(values[-1], 5)],
            }
        found.append(row)
    return found


def _one(config: SchedulerConfig, steps: StepModel, traffic: TrafficProfile, real: LoadResult, seed: int) -> LoadResult:
    shape = Shape(real.warmup_requests, traffic.min_requests_per_load, traffic.seconds_per_load)
    run: Simulated = run_load(config, steps, traffic, real.load, shape, seed=seed)
    return summarize(real.load, run.window, run.counted, run.everything, slo=SLO(), client=CLIENT)


def _value(result: LoadResult, name: str) -> float:
    if name == "rate":
        return result.request_rate_per_s
    metric, statistic = name.split("_")
    return float(getattr(getattr(result, f"{metric}_s"), statistic))


def show(title: str, table: list[dict[str, object]], held_out: set[int]) -> None:
    """Print a table; loads that took no part in the calibration have a star."""
    print(title)
    for row in table:
        star = "*" if row["users"] in held_out else " "
        cells = [
            f"{n} {v['measured']:.4g} → {v['predicted']:.4g} ({v['error']:+.0%})"
            for n, v in row.items()
            if n != "users"
        ]  # type: ignore[index]
        print(f"  c={row['users']:<4}{star}", "  ".join(cells))


def h200() -> dict[str, object]:
    """Three questions: loads between those of the calibration, and a scheme whose saturation was never seen."""
    measured = {scheme: h200_measured(scheme) for scheme in KV_TOKENS}
    out: dict[str, object] = {}
    models: dict[str, StepModel] = {}
    for scheme, found in measured.items():
        models[scheme] = calibrated(scheme, found, (1, 4, 16, 256), (16, 256))
        table = rows(h200_config(scheme), models[scheme], TRAFFIC, found)
        show(f"{scheme}: calibrated on 1, 4, 16 and 256 users", table, {64})
        out[scheme] = {"steps": models[scheme].model_dump(), "held_out": [64], "loads": table}
    light = calibrated("fp8", measured["fp8"], (1, 4, 16), ())
    outside = {name: getattr(models["bf16"], name) for name in ("request_s", "token_s")}
    light = light.model_copy(update={**outside, "overhead_s": max(0.0, light.overhead_s - outside["request_s"])})
    table = rows(h200_config("fp8"), light, TRAFFIC, measured["fp8"])
    show("fp8: calibrated on 1, 4 and 16 users, the serving process's times from bf16", table, {64, 256})
    out["fp8, serving process from bf16"] = {"steps": light.model_dump(), "held_out": [64, 256], "loads": table}
    return out


def save(part: str, found: object) -> None:
    """Put one part into the record."""
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    record[part] = found
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    save("h200", h200())
