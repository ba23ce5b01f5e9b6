"""Which engines a host can run, by the tables that plan refuses with."""

from __future__ import annotations

import pytest

from model_optimizer.doctor import examine
from model_optimizer.kb import query
from model_optimizer.kb.conditions import conditions
from model_optimizer.planning.works import engines_on, works
from tests.doctor.recorded import host


def said(name: str) -> str:
    """What works on that recorded host, as one text."""
    survey, _ = host(name)
    return "\n".join(works(survey, examine(survey, conditions())))


def test_a_cpu_server_runs_the_cpu_builds() -> None:
    assert {"llama.cpp", "transformers", "vllm-cpu"} <= set(engines_on(None, os="linux"))
    assert "vllm-cpu" not in engines_on(None, os="windows")
    assert "on the CPU: llama.cpp" in said("healthy-cpu-server")


def test_a_gpu_with_its_driver() -> None:
    assert "vllm" in engines_on(query.gpu("h200"), os="linux", driver="580.95.05")
    assert "vllm" not in engines_on(query.gpu("h200"), os="linux", driver="470.57.02")
    assert "on NVIDIA H200: " in said("healthy-h200")


@pytest.mark.parametrize("name", ["driver-library-mismatch", "nvidia-smi-hangs"])
def test_a_broken_driver_leaves_the_cpu(name: str) -> None:
    assert "on NVIDIA" not in said(name)
    assert "on the CPU: " in said(name)


def test_without_avx2_no_cpu_build_is_promised() -> None:
    assert "on the CPU" not in said("no-avx2")
    assert "without any engine: plan" in said("no-avx2")


@pytest.mark.parametrize("name", ["musl", "glibc-old", "python-new", "arm-server"])
def test_where_nothing_can_be_built_nothing_is_promised_to_be(name: str) -> None:
    assert "on the CPU: " not in said(name)
    assert "installed by you" in said(name)


def test_an_amd_gpu_keeps_its_line() -> None:
    assert "engines on the GPU through ROCm" in said("amd-mi300x")
