from __future__ import annotations

import pytest

from model_optimizer.engines import vllm
from model_optimizer.records.tooling import Gauges, Serve
from tests.engines.conftest import GIB, GOLDENS, H200, MakeFit


def test_argv_on_a_cpu(make_fit: MakeFit, serve: Serve) -> None:
    launch = vllm.launch(serve.model_copy(update={"engine_args": vllm.engine_args(make_fit())}))
    assert launch.worker == "vllm_server"
    assert " ".join(launch.args) == (
        "--model /store/model --served-model-name model --host 127.0.0.1 --port 18080 --max-model-len 1024"
        " --dtype float32 --enforce-eager --max-num-seqs 8"
    )
    assert launch.env == {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def test_argv_on_a_gpu(make_fit: MakeFit, serve: Serve) -> None:
    args = vllm.engine_args(make_fit(host={"gpus": (H200,)}))
    launch = vllm.launch(serve.model_copy(update={"engine_args": args, "device": "cuda"}))
    assert " ".join(launch.args[10:]) == "--dtype auto --gpu-memory-utilization 0.92 --max-num-seqs 8"
    assert not [name for name in launch.env if name.startswith("VLLM_CPU")]


def test_switches_go_both_ways(serve: Serve) -> None:
    launch = vllm.launch(serve.model_copy(update={"engine_args": {"enable_prefix_caching": False}}))
    assert launch.args[-1] == "--no-enable-prefix-caching"


@pytest.mark.parametrize(
    ("features", "dtype"), [(("avx2",), "float32"), (("avx2", "avx512f", "avx512_bf16"), "bfloat16")]
)
def test_dtype_follows_the_cpu(make_fit: MakeFit, features: tuple[str, ...], dtype: str) -> None:
    assert vllm.engine_args(make_fit(host={"cpu_features": features}))["dtype"] == dtype


def test_dtype_on_a_gpu_without_bfloat16(make_fit: MakeFit) -> None:
    t4 = H200.model_copy(update={"name": "Tesla T4", "compute_capability": "7.5"})
    assert vllm.engine_args(make_fit(host={"gpus": (t4,)}))["dtype"] == "float16"


def test_kv_cache_space_by_hand(make_fit: MakeFit) -> None:
    # float32: 2 * 30 layers * 3 heads * 64 * 4 B = 46080 B a token; 64 users * 4224 tokens (33 blocks) = 11.6 GiB
    args = vllm.engine_args(make_fit(concurrency=64, max_model_len=4096))
    assert args["VLLM_CPU_KVCACHE_SPACE"] == 12


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"host": {"os": "Windows 11"}}, "OS_UNSUPPORTED"),
        ({"model": {"format": "gguf"}}, "FORMAT_UNKNOWN"),
        ({"model": {"architecture": "NobodyForCausalLM"}}, "MODEL_UNKNOWN_TO_ENGINE"),
        ({"host": {"cpu_features": ("sse4_2",)}}, "PLATFORM_UNSUPPORTED"),
        ({"model": {"quantized_as": "gptq"}}, "NO_KERNEL_IN_ENGINE_VERSION"),
        ({"host": {"available_memory_bytes": 2 * GIB}}, "WEIGHTS_DO_NOT_FIT"),
        ({"host": {"available_memory_bytes": 5 * GIB}, "concurrency": 64}, "KV_CACHE_DOES_NOT_FIT"),
        (
            {"host": {"gpus": (H200.model_copy(update={"name": "Tesla V100", "compute_capability": "7.0"}),)}},
            "CAPABILITY_TOO_LOW",
        ),
        ({"host": {"gpus": (H200,)}, "weight_bytes": 140 * GIB}, "WEIGHTS_DO_NOT_FIT"),
        ({"host": {"gpus": (H200,)}, "weight_bytes": 126 * GIB, "max_model_len": 10**7}, "KV_CACHE_DOES_NOT_FIT"),
    ],
)
def test_refusals(make_fit: MakeFit, changes: dict, code: str) -> None:
    why_not = vllm.why_not(make_fit(**changes))
    assert why_not is not None
    assert why_not.code == code
    assert why_not.fix


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {"quantized_as": "gptq"}, "host": {"cpu_features": ("avx2", "avx512f")}},
        {"host": {"gpus": (H200,)}},
        {"host": {"os": "Ubuntu 24.04.1 LTS"}},
    ],
)
def test_serves(make_fit: MakeFit, changes: dict) -> None:
    assert vllm.why_not(make_fit(**changes)) is None


# Measured peak PSS in GiB of the process tree of vllm-cpu 0.32.0 with the demo model, 8 users, prompts of 120 tokens.
@pytest.mark.parametrize(("features", "measured"), [(("avx2",), 3.38), (("avx2", "avx512_bf16"), 3.05)])
def test_predicted_memory_is_within_5_percent(make_fit: MakeFit, features: tuple[str, ...], measured: float) -> None:
    assert vllm.memory_bytes(make_fit(host={"cpu_features": features})) / GIB == pytest.approx(measured, rel=0.05)


def test_gauges_of_a_recorded_page() -> None:
    page = (GOLDENS / "vllm_metrics.txt").read_text()  # max_num_seqs 8, twelve users
    gauges = vllm.gauges(page)
    assert (gauges.running, gauges.waiting, gauges.preemptions) == (8.0, 4.0, 0.0)
    assert gauges.kv_cache_usage == pytest.approx(0.0442, abs=1e-4)
    assert vllm.gauges("") == Gauges()


def test_environment_of_the_logits_job(make_fit: MakeFit) -> None:
    job = vllm.logits_job("/store/model", "/store/reference", vllm.engine_args(make_fit()))
    assert job.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in job.payload["engine_args"]
    assert job.payload["engine_args"]["dtype"] == "float32"
