from __future__ import annotations

import pytest

from model_optimizer.engines import transformers
from model_optimizer.records.tooling import Gauges, Serve
from tests.engines.conftest import GIB, MakeFit


def test_argv(make_fit: MakeFit, serve: Serve) -> None:
    launch = transformers.launch(serve.model_copy(update={"engine_args": transformers.engine_args(make_fit())}))
    assert launch.worker == "transformers_server"
    assert " ".join(launch.args) == (
        "--model /store/model --served-model-name model --port 18080 --max-model-len 1024 --dtype float32"
        " --device cpu --threads 2"
    )
    assert launch.env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert launch.metrics_path is None


def test_a_checkpoints_code_is_run_only_on_request(serve: Serve) -> None:
    plain = transformers.launch(serve)
    trusting = transformers.launch(serve.model_copy(update={"engine_args": {"trust_remote_code": True}}))
    assert "--trust-remote-code" not in plain.args
    assert "--trust-remote-code" in trusting.args


@pytest.mark.parametrize(
    ("features", "dtype"),
    [(("avx2", "avx512f"), "float32"), (("avx2", "avx512_bf16"), "bfloat16"), (("neon", "bf16"), "bfloat16")],
)
def test_dtype_follows_the_cpu(make_fit: MakeFit, features: tuple[str, ...], dtype: str) -> None:
    assert transformers.engine_args(make_fit(host={"cpu_features": features}))["dtype"] == dtype


def test_bfloat16_where_the_machine_is_too_small_for_float32(make_fit: MakeFit) -> None:
    eight_billion = {"num_parameters": 8 * 10**9, "weight_bytes": 16 * 10**9}
    fit = make_fit(model=eight_billion, weight_bytes=16 * 10**9)
    assert transformers.engine_args(fit)["dtype"] == "bfloat16"
    assert transformers.why_not(fit) is None  # 16 GB of weights in 22 GiB


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": {"format": "gguf"}}, "FORMAT_UNKNOWN"),
        ({"model": {"quantized_as": "awq"}}, "FORMAT_UNKNOWN"),
        ({"host": {"available_memory_bytes": GIB}}, "WEIGHTS_DO_NOT_FIT"),
    ],
)
def test_refusals(make_fit: MakeFit, changes: dict, code: str) -> None:
    why_not = transformers.why_not(make_fit(**changes))
    assert why_not is not None
    assert why_not.code == code
    assert why_not.fix


def test_predicted_memory_by_hand(make_fit: MakeFit) -> None:
    # float32 weights 513.1 MiB, the bfloat16 file mapped while it is read 256.6 MiB, runtime 425 MiB; measured 1166
    assert transformers.memory_bytes(make_fit()) / 2**20 == pytest.approx(1194.7, abs=0.1)


def test_no_metrics() -> None:
    assert transformers.gauges("anything 1\n") == Gauges()
