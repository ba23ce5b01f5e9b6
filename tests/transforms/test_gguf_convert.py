from __future__ import annotations

from typing import Any

import pytest

from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.tooling import Fit
from model_optimizer.transforms import gguf_convert
from tests.engines.conftest import HOST, SMOLLM2
from tests.transforms.test_gguf_quantize import DEMO


def fit(**changes: Any) -> Fit:
    changed = SMOLLM2.model_copy(update=changes)
    return Fit(model=changed, host=HOST, scheme="f16", max_model_len=1024, weight_bytes=10**8)


def step(outtype: str) -> TransformStep:
    return TransformStep(transform="gguf_convert", options={"outtype": outtype})


# Sizes of files that the converter wrote.
@pytest.mark.parametrize(("outtype", "written"), [("f16", 270_885_728), ("bf16", 270_885_728), ("q8_0", 144_810_848)])
def test_predicted_size_of_the_demo_model(outtype: str, written: int) -> None:
    assert gguf_convert.output_bytes(step(outtype), DEMO) == pytest.approx(written, rel=0.002)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"format": "gguf"}, "FORMAT_UNKNOWN"),
        ({"architecture": "NobodyForCausalLM"}, "MODEL_UNKNOWN_TO_ENGINE"),
        ({"quantized_as": "awq"}, "SOURCE_ALREADY_QUANTIZED"),
    ],
)
def test_refusals(changes: dict[str, Any], code: str) -> None:
    why_not = gguf_convert.why_not(fit(**changes))
    assert why_not is not None
    assert why_not.code == code
    assert why_not.fix or code == "FORMAT_UNKNOWN"


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM"])
def test_converts(architecture: str) -> None:
    assert gguf_convert.why_not(fit(architecture=architecture)) is None


def test_job() -> None:
    job = gguf_convert.job(step("bf16"), "/in", "/out")
    assert job.payload == {
        "model": "/in",
        "outtype": "bf16",
        "outfile": "model.gguf",
        "name": "model",
        "trust_remote_code": False,
    }
    assert job.env["HF_HUB_OFFLINE"] == "1"
