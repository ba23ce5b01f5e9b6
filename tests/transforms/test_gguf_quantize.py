from __future__ import annotations

import pytest

from model_optimizer.errors import UnknownName
from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.model import WeightClass
from model_optimizer.records.tooling import Fit
from model_optimizer.transforms import gguf_quantize
from tests.engines.conftest import HOST, SMOLLM2
from tests.sizing.models import model

# SmolLM2-135M, by its safetensors headers.
DEMO = SMOLLM2.model_copy(
    update={
        "weight_classes": (
            WeightClass(name="embeddings", parameters=28_311_552, weight_bytes=56_623_104),
            WeightClass(name="attention", parameters=26_542_080, weight_bytes=53_084_160),
            WeightClass(name="mlp", parameters=79_626_240, weight_bytes=159_252_480),
            WeightClass(name="norms", parameters=35_136, weight_bytes=70_272),
        )
    }
)
LLAMA_8B = model(
    "LlamaForCausalLM", layers=32, hidden=4096, mlp=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256
)


def step(scheme: str) -> TransformStep:
    return TransformStep(transform="gguf_quantize", options={"scheme": scheme})


# Sizes of files that the worker wrote.
@pytest.mark.parametrize(
    ("scheme", "written"),
    [("q8_0", 144_810_848), ("q6_k", 138_382_688), ("q5_k_m", 112_103_264), ("q4_k_m", 105_453_920)],
)
def test_predicted_size_of_the_demo_model(scheme: str, written: int) -> None:
    assert gguf_quantize.output_bytes(step(scheme), DEMO) == pytest.approx(written, rel=0.01)


# File sizes in GB of Llama-3.1-8B as published with llama.cpp's own quantizer (its README's table, in GiB: 4.58 for
# Q4_K_M, 5.33 Q5_K_M, 6.14 Q6_K, 7.95 Q8_0).
@pytest.mark.parametrize(
    ("scheme", "published_gib"), [("q4_k_m", 4.58), ("q5_k_m", 5.33), ("q6_k", 6.14), ("q8_0", 7.95), ("q2_k", 2.95)]
)
def test_predicted_size_of_an_8b(scheme: str, published_gib: float) -> None:
    assert gguf_quantize.output_bytes(step(scheme), LLAMA_8B) / 2**30 == pytest.approx(published_gib, rel=0.02)


def test_sizes_follow_the_bits() -> None:
    order = ["q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "iq4_xs", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k", "q8_0"]
    sizes = [gguf_quantize.output_bytes(step(scheme), LLAMA_8B) for scheme in order]
    assert sizes == sorted(sizes)


def test_a_model_whose_classes_are_unknown_is_still_estimated() -> None:
    bare = LLAMA_8B.model_copy(update={"weight_classes": ()})
    known = gguf_quantize.output_bytes(step("q4_k_m"), LLAMA_8B)
    assert gguf_quantize.output_bytes(step("q4_k_m"), bare) == pytest.approx(known, rel=0.1)


def test_job_carries_the_mix_as_data() -> None:
    job = gguf_quantize.job(step("q4_k_m"), "/in.gguf", "/out")
    assert job.payload["mix"]["file_type"] == 15
    assert job.payload["mix"]["rules"] == [["attn_v", "more_bits", "Q6_K"], ["ffn_down", "more_bits", "Q6_K"]]
    assert job.payload["outfile"] == gguf_quantize.output_main(step("q4_k_m"))


def test_unknown_scheme() -> None:
    with pytest.raises(UnknownName) as caught:
        gguf_quantize.job(step("q9_z"), "/in.gguf", "/out")
    assert "q4_k_m" in caught.value.fix


def test_quantizing_twice_is_refused() -> None:
    packed = SMOLLM2.model_copy(update={"format": "gguf", "quantized_as": "q4_1"})
    fit = Fit(model=packed, host=HOST, scheme="q4_k_m", max_model_len=1024, weight_bytes=10**8)
    why_not = gguf_quantize.why_not(fit)
    assert why_not is not None
    assert why_not.code == "SOURCE_ALREADY_QUANTIZED"
    assert gguf_quantize.why_not(fit.model_copy(update={"model": SMOLLM2})) is None
