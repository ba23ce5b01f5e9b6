from __future__ import annotations

import pytest

from model_optimizer.engines import llama_cpp
from model_optimizer.records.tooling import Gauges, Serve
from tests.engines.conftest import GIB, GOLDENS, MakeFit


def test_argv(make_fit: MakeFit, serve: Serve) -> None:
    launch = llama_cpp.launch(serve.model_copy(update={"engine_args": llama_cpp.engine_args(make_fit())}))
    assert launch.worker == "llama_cpp_server"
    assert " ".join(launch.args) == (
        "--model /store/model --alias model --port 18080 --n-parallel 8 --n-ctx 8192 --n-threads 2"
        " --omp-wait-policy auto"
        " --set cache_prompt=false --set cache_ram_mib=0 --set cache_type_k=f16 --set cache_type_v=f16"
        " --set n_batch=2048 --set n_ctx_checkpoints=0 --set n_ubatch=512"
    )
    assert launch.served_model == "model"


def test_threads_and_the_wait_policy_can_be_set(serve: Serve) -> None:
    args = {"n_threads": 1, "omp_wait_policy": "passive"}
    launch = llama_cpp.launch(serve.model_copy(update={"engine_args": args}))
    assert launch.args[-4:] == ("--n-threads", "1", "--omp-wait-policy", "passive")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"scheme": "as-is"}, "FORMAT_UNKNOWN"),
        ({"host": {"cpu_features": ("sse4_2",)}}, "PLATFORM_UNSUPPORTED"),
        ({"scheme": "bf16"}, "NO_KERNEL_IN_ENGINE_VERSION"),
        ({"scheme": "as-is", "model": {"format": "gguf"}}, "NO_KERNEL_IN_ENGINE_VERSION"),
        ({"host": {"available_memory_bytes": GIB // 5}}, "WEIGHTS_DO_NOT_FIT"),
        ({"host": {"available_memory_bytes": GIB // 2}, "concurrency": 16}, "KV_CACHE_DOES_NOT_FIT"),
    ],
)
def test_refusals(make_fit: MakeFit, changes: dict, code: str) -> None:
    why_not = llama_cpp.why_not(make_fit(**changes))
    assert why_not is not None
    assert why_not.code == code
    assert why_not.fix


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scheme": "f16"},
        {"scheme": "as-is", "model": {"format": "gguf", "quantized_as": "q4_k_m", "weight_dtype": "Q4_K"}},
        {"host": {"machine": "aarch64", "cpu_features": ("neon",)}},
        {"host": {"os": "Darwin 24", "machine": "arm64", "cpu_features": ()}},
    ],
)
def test_serves(make_fit: MakeFit, changes: dict) -> None:
    assert llama_cpp.why_not(make_fit(**changes)) is None


# Measured peak PSS in MiB of xllamacpp 2026.10.11549 with the Q8_0 demo model after prompts of 900 tokens.
@pytest.mark.parametrize(
    ("slots", "context", "measured"), [(1, 1024, 223.4), (1, 8192, 380.9), (4, 4096, 563.6), (8, 4096, 930.0)]
)
def test_predicted_memory_is_within_5_percent(make_fit: MakeFit, slots: int, context: int, measured: float) -> None:
    fit = make_fit(weight_bytes=144_810_848, concurrency=slots, max_model_len=context)
    assert llama_cpp.memory_bytes(fit) / 2**20 == pytest.approx(measured, rel=0.05)


def test_gauges_of_a_recorded_page() -> None:
    page = (GOLDENS / "llama_cpp_metrics.txt").read_text()  # two slots, five users
    assert llama_cpp.gauges(page) == Gauges(running=2.0, waiting=3.0)
    assert llama_cpp.gauges("") == Gauges()


def test_the_logits_job_gets_what_the_server_gets(make_fit: MakeFit) -> None:
    job = llama_cpp.logits_job("/store/model.gguf", "/store/reference", llama_cpp.engine_args(make_fit()))
    assert job.worker == "llama_cpp_logits"
    assert job.payload["reference"] == "/store/reference"
    assert job.payload["engine_args"]["cache_type_k"] == "f16"
