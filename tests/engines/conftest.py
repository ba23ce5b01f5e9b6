"""The demo model on a small CPU host; tests change what they are about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_optimizer.records.hardware import DetectedGpu, HostSpec
from model_optimizer.records.model import ModelSpec
from model_optimizer.records.tooling import Fit, Serve

GIB = 2**30
GOLDENS = Path(__file__).parent / "goldens"

HOST = HostSpec(
    os="Debian GNU/Linux 12 (bookworm)", kernel="6.1", machine="x86_64", python="3.11.7", cpu_name="AMD EPYC",
    cpu_cores=2, cpu_features=("avx2", "fma", "f16c"), memory_bytes=24 * GIB, available_memory_bytes=22 * GIB,
    free_disk_bytes=70 * GIB,
)  # fmt: skip
H200 = DetectedGpu(
    index=0, name="NVIDIA H200", memory_bytes=143771 * 2**20, free_memory_bytes=143000 * 2**20,
    compute_capability="9.0", driver="580.95.05", power_limit_w=700,
)  # fmt: skip
SMOLLM2 = ModelSpec(
    source="demo", format="hf", architecture="LlamaForCausalLM", num_layers=30, hidden_size=576, intermediate_size=1536,
    num_attention_heads=9, num_kv_heads=3, head_dim=64, vocab_size=49152, max_position_embeddings=8192,
    attention="gqa", tie_word_embeddings=True, weight_dtype="BF16", weight_bytes=269_030_016,
    num_parameters=134_515_008,
)  # fmt: skip

MakeFit = Callable[..., Fit]


@pytest.fixture
def make_fit() -> MakeFit:
    """``model`` and ``host`` are fields to change; all else goes into the ``Fit``."""

    def make(*, model: dict[str, Any] | None = None, host: dict[str, Any] | None = None, **fields: Any) -> Fit:
        given: dict[str, Any] = {
            "scheme": "q8_0", "max_model_len": 1024, "concurrency": 8, "weight_bytes": SMOLLM2.weight_bytes,
        }  # fmt: skip
        return Fit(
            model=SMOLLM2.model_copy(update=model or {}), host=HOST.model_copy(update=host or {}), **given | fields
        )

    return make


@pytest.fixture
def serve() -> Serve:
    return Serve(model_path="/store/model", port=18080, max_model_len=1024, concurrency=8, cpu_cores=2)
