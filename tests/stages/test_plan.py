from __future__ import annotations

from typing import Any

import pytest

from model_optimizer.errors import NothingFits, SpecInvalid
from model_optimizer.records.hardware import DetectedGpu, HostSpec
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.run import RunSpec
from model_optimizer.request import resolve
from model_optimizer.stages.plan import make_plan
from tests.sizing import models

GIB = 2**30
CPU = HostSpec(
    os="Debian GNU/Linux 12", kernel="6", machine="x86_64", python="3.11", cpu_name="cpu", cpu_cores=8,
    cpu_features=("avx2",), memory_bytes=256 * GIB, available_memory_bytes=250 * GIB, free_disk_bytes=500 * GIB,
)  # fmt: skip
NONE: dict[str, bool] = {}
LLAMA = models.LLAMA_31_8B.model_copy(update={"architecture": "LlamaForCausalLM"})


def gpu_host(name: str, memory_gib: float, capability: str, driver: str = "580.95") -> HostSpec:
    card = DetectedGpu(
        index=0, name=name, memory_bytes=int(memory_gib * GIB), compute_capability=capability, driver=driver
    )
    return CPU.model_copy(update={"gpus": (card,)})


def request(**values: Any) -> RunSpec:
    return resolve({"model": "m", "traffic": "founding-mix", **values})


def test_a_cpu_gets_its_ladder_and_a_reason_for_what_is_left_out():
    plan = make_plan(request(), LLAMA, CPU, installed=NONE)
    assert [p.candidate.label for p in plan.candidates] == [
        "q8_0 · llama.cpp", "q4_k_m · llama.cpp", "f16 · llama.cpp",
    ]  # fmt: skip
    assert [(r.route, r.code) for r in plan.refused] == [("as-is · vllm", "TOOL_NOT_INSTALLED")]
    with_vllm = make_plan(request(), LLAMA, CPU, installed={"vllm": True})
    assert with_vllm.candidates[-1].candidate.label == "bf16 · vllm"
    sizes = [p.estimate.weight_bytes for p in plan.candidates]
    assert sizes[1] < sizes[0] < sizes[2]


def test_a_request_narrows_the_plan():
    plan = make_plan(request(schemes=["q4_k_m"]), LLAMA, CPU, installed=NONE)
    assert [p.candidate.scheme for p in plan.candidates] == ["q4_k_m"]
    assert {r.code for r in plan.refused} == {"NOT_REQUESTED"}


def test_what_does_not_fit_is_refused_with_numbers():
    small = CPU.model_copy(update={"memory_bytes": 20 * GIB, "available_memory_bytes": 18 * GIB})
    with pytest.raises(NothingFits) as caught:
        make_plan(
            request(), models.MIXTRAL.model_copy(update={"architecture": "MixtralForCausalLM"}), small, installed=NONE
        )
    assert "GiB" in " ".join([caught.value.cause, *caught.value.evidence])


def test_traffic_longer_than_the_context_is_a_mistake_of_the_request():
    short = LLAMA.model_copy(update={"max_position_embeddings": 1024})
    with pytest.raises(SpecInvalid, match="needs 2176 tokens of context, the model has 1024"):
        make_plan(request(), short, CPU, installed=NONE)
    with pytest.raises(SpecInvalid, match="shorter than the traffic"):
        make_plan(request(max_model_len=512), LLAMA, CPU, installed=NONE)


@pytest.mark.parametrize(
    ("host", "schemes"),
    [
        (gpu_host("NVIDIA H200", 140, "9.0"), {"fp8", "bf16"}),
        (gpu_host("NVIDIA L20", 45, "8.9"), {"fp8", "bf16"}),
        (gpu_host("NVIDIA A100-SXM4-80GB", 80, "8.0"), {"fp8", "bf16"}),  # fp8 is emulated there, and says so
    ],
    ids=lambda value: value.gpus[0].name if isinstance(value, HostSpec) else "",
)
def test_a_gpu_gets_what_the_knowledge_base_says(host: HostSpec, schemes: set[str]):
    plan = make_plan(request(), LLAMA, host, installed=NONE)
    found = {p.candidate.scheme: p for p in plan.candidates}
    assert set(found) == schemes
    assert {p.candidate.engine for p in plan.candidates} == {"vllm"}
    assert found["fp8"].candidate.engine_args["quantization"] == "fp8"
    assert "quantization" not in found["bf16"].candidate.engine_args
    state = "emulated" if host.gpus[0].compute_capability == "8.0" else "native"
    assert found["fp8"].why.startswith(state)
    assert "PLATFORM_UNSUPPORTED" in {r.code for r in plan.refused}  # llama.cpp's CPU build


def test_fp8_comes_first_where_it_is_native():
    plan = make_plan(request(), LLAMA, gpu_host("NVIDIA H200", 140, "9.0"), installed=NONE)
    assert plan.candidates[0].candidate.scheme == "fp8"
    assert plan.candidates[0].estimate.decode_floor_s is not None


def test_a_driver_too_old_refuses_vllm_with_its_source():
    host = gpu_host("NVIDIA L20", 45, "8.9", driver="525.60")
    with pytest.raises(NothingFits) as caught:
        make_plan(request(engines=["vllm"]), LLAMA, host, installed=NONE)
    assert any("580" in line for line in caught.value.evidence)


def test_an_unknown_gpu_gets_the_checkpoint_as_it_is():
    plan = make_plan(request(), LLAMA, gpu_host("Imaginary 9000", 80, "9.0"), installed=NONE)
    assert [p.candidate.label for p in plan.candidates] == ["bf16 · vllm"]
    assert "NOT_ESTABLISHED" in {r.code for r in plan.refused}


def test_a_gguf_keeps_its_own_route():
    gguf: ModelSpec = LLAMA.model_copy(update={"format": "gguf", "quantized_as": "q4_k_m"})
    plan = make_plan(request(), gguf, CPU, installed=NONE)
    assert [p.candidate.label for p in plan.candidates] == ["q4_k_m · llama.cpp"]
    assert plan.baseline.engine == "transformers"
    assert [r.code for r in plan.refused] == ["SOURCE_ALREADY_QUANTIZED"]
