from __future__ import annotations

import pytest

from model_optimizer.records.simulation import SchedulerConfig
from model_optimizer.simulation.config import Scalar, scheduler_config

GIB = 2**30


def config(engine: str, settings: dict[str, Scalar], *, gib: int = 0, kv_tokens: int | None = None) -> SchedulerConfig:
    found = scheduler_config(engine, settings, kv_tokens=kv_tokens, max_model_len=4096, gpu_memory_bytes=gib * GIB)
    assert found is not None
    return found


@pytest.mark.parametrize(("gib", "seqs", "budget"), [(24, 256, 2048), (141, 1024, 8192), (180, 1024, 16384)])
def test_vllm_takes_its_defaults_from_the_memory(gib: int, seqs: int, budget: int):
    found = config("vllm", {}, gib=gib)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, budget)


def test_settings_come_before_defaults():
    found = config(
        "vllm",
        {"max_num_seqs": 64, "max_num_batched_tokens": 1024, "enable_prefix_caching": False, "block_size": 32},
        gib=141,
        kv_tokens=100_000,
    )
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.num_kv_tokens) == (64, 1024, 100_000)
    assert not found.prefix_caching
    assert found.block_tokens == 32


def test_llama_cpp_has_slots():
    found = config("llama.cpp", {"n_parallel": 8, "n_ubatch": 128})
    assert (found.policy, found.max_num_seqs, found.micro_batch_tokens) == ("slots", 8, 128)
    assert found.num_kv_tokens == 8 * 4096


def test_other_engines_are_not_simulated():
    assert scheduler_config("transformers", {}, kv_tokens=None, max_model_len=4096) is None
