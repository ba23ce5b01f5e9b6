"""What to try first: every GPU has an order, every rung a source, and the table agrees with what engines can do."""

from __future__ import annotations

import pytest

from model_optimizer.kb import query
from model_optimizer.kb.ladder import engine_rank, last_resort, rung, rungs


@pytest.mark.parametrize("gpu", query.gpus(), ids=lambda gpu: gpu.id)
def test_every_gpu_has_a_ladder_with_sources(gpu):
    steps = rungs(gpu)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.sources and step.why for step in steps)


@pytest.mark.parametrize(
    ("gpu", "generation", "first"),
    [
        ("b200", "Blackwell in data centres", "nvfp4"),
        ("rtx-5090", "Blackwell workstation and GeForce", "fp8"),
        ("dgx-spark-gb10", "Blackwell workstation and GeForce", "fp8"),
        ("h100-sxm", "Hopper", "fp8"),
        ("l20", "Ada (L4, L20, L40S, RTX 40)", "fp8"),
        ("a100-sxm-80gb", "Ampere", "w8a8-int8"),
        ("jetson-agx-orin-64gb", "Ampere", "w8a8-int8"),
        ("t4", "Turing", "w8a8-int8"),
        ("v100-sxm2", "Volta, Pascal and older", "q8_0"),
        ("gtx-1070", "Volta, Pascal and older", "q8_0"),
        ("mi300x", "AMD Instinct", "fp8"),
        ("arc-b580", "Intel GPUs", "w4a16-awq"),
    ],
)
def test_the_first_rung(gpu, generation, first):
    step = rungs(query.gpu(gpu))[0]
    assert (step.generation, step.schemes[0]) == (generation, first)


@pytest.mark.parametrize("gpu", query.gpus(), ids=lambda gpu: gpu.id)
def test_some_engine_can_do_the_ladder(gpu):
    """At least one rung of every GPU is native in some server."""
    servers = [engine.id for engine in query.engines() if engine.server]
    states = {
        query.state(scheme, engine, gpu.id).state
        for step in rungs(gpu)
        for scheme in step.schemes
        for engine in step.engines or servers
    }
    assert "native" in states


def test_a_rung_may_be_for_some_engines_only():
    ada = query.gpu("l4")
    found = rung(ada, "tensorrt-llm", "w4a8-awq")
    assert found is not None and found.number == 2
    assert rung(ada, "vllm", "w4a8-awq") is None
    assert rung(ada, "vllm", "nvfp4") is None


def test_order_of_engines_and_last_resorts():
    assert engine_rank("vllm") < engine_rank("sglang") < engine_rank("llama.cpp") < engine_rank("openvino-genai")
    assert last_resort() == {"q2_k", "q3_k_l"}
