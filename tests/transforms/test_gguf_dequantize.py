from __future__ import annotations

from typing import Any

import pytest

from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.tooling import Fit
from model_optimizer.transforms import gguf_dequantize
from tests.engines.conftest import GIB, HOST, SMOLLM2

STEP = TransformStep(transform="gguf_dequantize")
GGUF = SMOLLM2.model_copy(update={"format": "gguf", "architecture": "llama"})


def fit(model: dict[str, Any], **host: Any) -> Fit:
    return Fit(
        model=GGUF.model_copy(update=model), host=HOST.model_copy(update=host), scheme="as-is", max_model_len=1024,
        weight_bytes=10**8,
    )  # fmt: skip


def test_predicted_size_of_the_demo_model() -> None:
    written = 269_060_552 + 3_522_656 + 2_000  # model.safetensors, tokenizer.json, the rest
    assert gguf_dequantize.output_bytes(STEP, GGUF) == pytest.approx(written, rel=0.01)


@pytest.mark.parametrize(
    ("model", "host", "code"),
    [
        ({"format": "hf"}, {}, "FORMAT_UNKNOWN"),
        ({"architecture": "rwkv7"}, {}, "MODEL_UNKNOWN_TO_ENGINE"),
        ({}, {"available_memory_bytes": GIB}, "WEIGHTS_DO_NOT_FIT"),
    ],
)
def test_refusals(model: dict[str, Any], host: dict[str, Any], code: str) -> None:
    why_not = gguf_dequantize.why_not(fit(model, **host))
    assert why_not is not None
    assert why_not.code == code


def test_reads_the_demo_model() -> None:
    assert gguf_dequantize.why_not(fit({})) is None
    job = gguf_dequantize.job(STEP, "/in.gguf", "/out")
    assert job.payload == {"model": "/in.gguf", "dtype": "bfloat16"}
