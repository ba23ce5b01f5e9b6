"""``gpus``, ``engines``, ``schemes``: facts with unit, status and source."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from model_optimizer.cli.app import app
from model_optimizer.errors import SpecInvalid, UnknownName
from model_optimizer.kb import query


def call(*args: str, width: int = 200) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": str(width)})


def said(*args: str) -> str:
    result = call(*args)
    assert result.exit_code == 0, result.exception
    return result.output


def test_every_gpu_is_listed():
    text = said("gpus")
    assert all(f"{spec.id} " in text for spec in query.gpus())
    assert "48 GiB" in text and "864" in text


def test_one_gpu_with_unit_status_and_source():
    text = said("gpus", "l20")
    row = next(line for line in text.splitlines() if line.startswith("memory bandwidth"))
    assert "864 GB/s" in row and "vendor" in row
    assert "cluster_info.py" in text
    assert "dense fp8" in text and "239 TFLOP/s" in text
    assert "what to try first" in text
    assert "mind Ada, not Hopper" in text


def test_what_is_too_old_for_what():
    text = said("gpus", "gtx", "1070")  # several words, one name
    assert "GeForce GTX 1070" in text
    old = text.partition("too old for")[2].partition("what to try first")[0]
    assert "vllm 0.33.0" in old and "needs compute capability 7.5" in old
    assert "llama.cpp" not in old


def test_side_by_side():
    text = said("gpus", "--compare", "l20", "l40s", "h100 sxm")
    row = next(line for line in text.splitlines() if line.startswith("memory bandwidth"))
    assert row.split()[2:] == ["864", "GB/s", "v", "864", "GB/s", "v", "3.35", "TB/s", "v"]
    assert isinstance(call("gpus", "--compare", "l20").exception, SpecInvalid)


def test_the_same_as_data():
    rows = json.loads(said("gpus", "l20", "l4", "--json"))
    assert [row["id"] for row in rows] == ["l20", "l4"]
    assert rows[0]["memory_bandwidth_bytes_s"]["value"] == 864e9
    assert rows[0]["memory_bandwidth_bytes_s"]["status"] == "vendor"
    assert len(json.loads(said("gpus", "--json"))) == len(query.gpus())
    assert json.loads(said("engines", "vllm", "--json"))[0]["current_version"] == query.engine("vllm").current_version
    assert {row["id"] for row in json.loads(said("schemes", "--json"))} == {s.id for s in query.schemes()}


def test_engines():
    text = said("engines")
    assert all(facts.id in text for facts in query.engines())
    one = said("engines", "vllm")
    assert "--gpu-memory-utilization" in one and "0.92" in one
    assert "not there --swap-space" in one and "--kv-offloading-size" in one
    assert "sources:" in one


def test_schemes():
    text = said("schemes")
    assert "4.8944" in text and "q4_k_m" in text
    one = said("schemes", "fp8")
    vllm = one.partition("vLLM 0.33.0")[2]
    assert "native NATIVE on" in vllm and "all hopper" in vllm
    assert "emulated WEIGHT_ONLY on" in vllm and "all ampere" in vllm
    assert "impossible" in one.partition("TensorRT-LLM")[2]


@pytest.mark.parametrize(
    ("args", "near"),
    [(("gpus", "rtx 4091"), "rtx-4090"), (("engines", "vlm"), "vllm"), (("schemes", "q4_k_n"), "q4_k_m")],
)
def test_unknown_names_bring_the_nearest(args: tuple[str, ...], near: str):
    error = call(*args).exception
    assert isinstance(error, UnknownName)
    assert near in error.fix
