"""NVIDIA's measured rows (``silicon_sample.csv`` of the package aiconfigurator-core) as rows of prediction.py.

Only rows that a model of prediction.yaml and a GPU of the knowledge base answer to: one replica (no disaggregation),
tensor parallelism up to 8. Rows of the same configuration are merged by their median.
"""

from __future__ import annotations

import csv
import hashlib
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MODELS = {
    "meta-llama/Llama-3.1-70B": "Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
    "Qwen/Qwen3-32B": "Qwen3-32B",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
_GPUS = {"h200_sxm": "h200-sxm", "h100_sxm": "h100-sxm", "b200_sxm": "b200"}
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
_SCHEMES = {"": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
_NO_PREFILL = "nvidia/Llama-3.1-8B-Instruct-FP8"  # see the set h200-decode-8b of prediction.yaml


def read_silicon(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """What the file is, and its usable rows in prediction.py's fields."""
    raw = path.read_bytes()
    merged: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in csv.DictReader(raw.decode().splitlines()):
        for row in _usable(line):
            key = tuple(value for name, value in row.items() if name not in ("ttft_ms", "tpot_ms"))
            merged.setdefault(key, []).append(row)
    rows = [
        same[0] | {name: statistics.median(row[name] for row in same) for name in ("ttft_ms", "tpot_ms")}
        for same in merged.values()
    ]
    return f"silicon_sample.csv of NVIDIA aiconfigurator (sha256 {hashlib.sha256(raw).hexdigest()[:16]})", rows


def _usable(line: dict[str, str]) -> Iterator[dict[str, Any]]:
    model, gpu = _MODELS.get(line["model_path"]), _GPUS.get(line["system"])
    one_replica = line["mode"] == "agg" and line["pp_size"] in ("", "1") and line["attention_dp_size"] in ("", "1")
    if model is None or gpu is None or not one_replica or int(line["tp_size"]) > 8:
        return
    expert_gpus = int(line["moe_tp_size"] or 1) * int(line["moe_ep_size"] or 1)
    if expert_gpus not in (1, int(line["tp_size"])):
        return  # attention on fewer GPUs than the experts (data parallel): not modelled
    public = "gap-analysis" not in line["silicon_data_source"]  # InferenceMAX; the others do not say how they measured
    if model == "gpt-oss-120b" and not public:
        return  # said to be FP8, which this model is not
    scheme = "mxfp4" if model == "gpt-oss-120b" else _SCHEMES.get(line["gemm_quant_mode"])
    if model == "Qwen3-235B-A22B" and scheme == "bf16":
        scheme = "fp8-block"
    if scheme is None:
        return
    engine, decode = _ENGINES[line["backend"]], line["model_path"] == _NO_PREFILL
    fitted = (
        (engine == "vllm" and gpu == "h200-sxm" and public)
        or (model == "gpt-oss-120b" and gpu == "h200-sxm")
        or (engine == "tensorrt-llm" and gpu == "h100-sxm" and model == "Llama-3.1-8B")
    )
    yield {
        "engine": engine,
        "version": None,
        "model": model,
        "scheme": scheme,
        "kv": "fp8" if public and model == "Llama-3.1-70B" else "auto",
        "gpu": gpu,
        "tensor": int(line["tp_size"]),
        "prompt_tokens": int(line["isl"]),
        "output_tokens": int(line["osl"]),
        "concurrency": int(line["batch_size"]),
        "kind": "decode" if decode else "closed_loop",
        "length_share": 0.9 if public else 1.0,
        "use": "fit" if fitted else "held-out",
        "ttft_ms": float(line["silicon_ttft_ms"]),
        "tpot_ms": float(line["silicon_tpot_ms"]),
    }
