"""The real environments, built from the user's own package index, and the real vLLM. Minutes, gigabytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from model_optimizer.errors import ServerFailed
from model_optimizer.host.probe import cpu_cores
from model_optimizer.host.process import run
from model_optimizer.host.server import free_port, serve
from model_optimizer.host.toolenv import Toolbox, ToolEnv
from model_optimizer.host.toolspec import tool_specs
from model_optimizer.records.tooling import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# A Llama of 20 kB with a vocabulary of bytes: everything about serving is real but its answers.
TINY_MODEL = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=alphabet[0], bos_token=alphabet[0])
sizes = dict(vocab_size=256, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=512)).save_pretrained(sys.argv[1])
fast.save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One home for all tests of this file; ``MODEL_OPTIMIZER_TEST_TOOLS`` keeps it between runs."""
    kept = os.environ.get("MODEL_OPTIMIZER_TEST_TOOLS")
    yield Path(kept) if kept else tmp_path_factory.mktemp("tools")


@pytest.mark.parametrize("name", list(tool_specs()))
def test_builds_and_works(name, home, events):
    tools = Toolbox(home, overrides={}, emit=events, platform="cpu")
    started = time.monotonic()
    env = tools.install(name)
    print(f"{name} {env.version}: {env.size_bytes / 1e6:.0f} MB, {time.monotonic() - started:.0f} s")
    assert env.size_bytes == pytest.approx(tool_specs()[name].builds["cpu"].installed, rel=0.15)
    assert tools.verify(name).installed
    found = {fields["what"] for fields in events.of("progress")}
    assert not found or f"install {name}: check" in found


@pytest.fixture(scope="module")
def vllm(home: Path) -> ToolEnv:
    return Toolbox(home, overrides={}, emit=lambda kind, **_: None, platform="cpu").ensure("vllm")


@pytest.fixture(scope="module")
def tiny_model(vllm: ToolEnv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    done = run([str(vllm.python), "-c", TINY_MODEL, str(folder)], timeout_s=300)
    assert done.returncode == 0, done.tail
    return folder


def launch(model: Path, port: int) -> Launch:
    arguments = ("--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port))
    settings = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "256")
    binding = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": f"0-{cpu_cores() - 1}"}
    env = binding | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return Launch(
        tool="vllm",
        module="vllm.entrypoints.openai.api_server",
        args=arguments + settings,
        env=env,
        served_model="tiny",
    )


def running(pids: set[int]) -> set[int]:
    return {pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE}


def test_vllm_answers_and_leaves_nothing(vllm, tiny_model, tmp_path, events):
    port = free_port()
    with serve(launch(tiny_model, port), vllm, port=port, log=tmp_path / "log", emit=events) as server:
        body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 4, "temperature": 0}).encode()
        ask = urllib.request.Request(
            server.url + "/v1/completions", body, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(ask, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
        assert "vllm:num_requests_running" in server.metrics_text()
        stats = server.stats()
        tree = {p.pid for p in psutil.Process(server.pid).children(recursive=True)} | {server.pid}
        print(f"ready in {stats.ready_s:.0f} s, peak {stats.peak_memory_bytes / 1e6:.0f} MB, {len(tree)} processes")
        assert len(tree) > 1
        assert stats.peak_memory_bytes > 200 << 20
        server.check()
    assert not running(tree)


def test_vllm_on_a_model_cut_short_says_what_is_wrong(vllm, tiny_model, tmp_path, events):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        data = file.read_bytes()
        (broken / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
    port = free_port()
    with (
        pytest.raises(ServerFailed) as caught,
        serve(launch(broken, port), vllm, port=port, log=tmp_path / "log", emit=events),
    ):
        pass
    assert "SafetensorError" in caught.value.cause


def test_vllm_does_not_outlive_us(vllm, tiny_model, tmp_path):
    port = free_port()
    owner = tmp_path / "owner.py"
    owner.write_text(
        textwrap.dedent(f"""
        import psutil, time
        from pathlib import Path
        from model_optimizer.host.server import serve
        from model_optimizer.host.toolenv import ToolEnv
        from model_optimizer.records.tooling import Launch
        launch = Launch.from_json({launch(tiny_model, port).to_json()!r})
        env = ToolEnv("vllm", Path({str(vllm.python)!r}), "", "", 0)
        log = Path({str(tmp_path / "log")!r})
        with serve(launch, env, port={port}, log=log, emit=lambda kind, **_: None) as server:
            print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
            time.sleep(600)
        """)
    )
    with subprocess.Popen([sys.executable, str(owner)], stdout=subprocess.PIPE, text=True) as us:
        assert us.stdout is not None
        pids = {int(word) for word in us.stdout.readline().split()}
        assert len(running(pids)) > 2
        us.send_signal(signal.SIGKILL)
        us.wait()
        time.sleep(1)
        assert not running(pids)
