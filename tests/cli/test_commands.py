"""The command line as a user meets it, without engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.host.checkpoints import hf_folder


def run(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "model_optimizer", *args],
        env={**os.environ, "MODEL_OPTIMIZER_HOME": str(home), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_inspect_tells_what_a_checkpoint_is(tmp_path: Path):
    model = hf_folder(tmp_path / "tiny")
    done = run(tmp_path / "home", "inspect", str(model))
    assert done.returncode == 0, done.stderr
    assert "LlamaForCausalLM" in done.stdout
    assert "KV cache" in done.stdout
    as_data = json.loads(run(tmp_path / "home", "inspect", str(model), "--json").stdout)
    assert as_data["architecture"] == "LlamaForCausalLM"


def test_plan_gives_a_reason_for_every_route_left_out(tmp_path: Path):
    model = hf_folder(tmp_path / "tiny")
    request = tmp_path / "request.yaml"
    request.write_text(f"model: {model}\ntraffic: {{prompt_tokens: {{32: 1}}, output_tokens: 16}}\nschemes: [q8_0]\n")
    done = run(tmp_path / "home", "plan", str(request), "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [p["candidate"]["scheme"] for p in plan["candidates"]] == ["q8_0"]
    assert {r["code"] for r in plan["refused"]} == {"NOT_REQUESTED"}
    assert all(r["reason"] for r in plan["refused"])


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["run"], 2, "no model was named"),
        (["run", "--no-such-option"], 2, "No such option"),
        (["run", "./no/such/folder"], 2, "fix"),
        (["run", "missing.yaml"], 2, "cannot be read"),
        (["run", "--demo", "--slo", "tokens_per_s=120"], 2, "ambiguous"),
        (["run", "--demo", "--slo", "ttft_p99=150"], 2, "no unit"),
        (["run", "--demo", "--traffic", "chta"], 2, "chat"),
        (["run", "--demo", "--gpu", "rtx-4090"], 3, "not in this machine"),
        (["status", "nonesuch"], 2, "none yet"),
        (["tools", "install", "vlm"], 2, "vllm"),
        (["bench", "http://127.0.0.1:9"], 4, "fix"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_mistake_gets_one_clear_message(tmp_path: Path, args: list[str], code: int, says: str):
    done = run(tmp_path / "home", *args)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code, text
    assert says in text
    assert "Traceback" not in text


def test_a_broken_checkpoint_is_refused_before_anything_is_built(tmp_path: Path):
    model = hf_folder(tmp_path / "tiny")
    weights = next(model.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-10])
    done = run(tmp_path / "home", "run", str(model), "--traffic", "demo")
    assert done.returncode == 2, done.stderr
    assert "CheckpointInvalid" in done.stderr
    assert not list((tmp_path / "home" / "tools").glob("*"))
    shown = run(tmp_path / "home", "inspect", str(model))
    assert shown.returncode == 2
    assert "error" in shown.stdout + shown.stderr


def test_an_error_is_data_too(tmp_path: Path):
    done = run(tmp_path / "home", "run", "./no/such/folder", "--json")
    error = json.loads(done.stdout)
    assert error["exit_code"] == done.returncode == 2
    assert error["fix"]


def test_a_home_that_cannot_be_written(tmp_path: Path):
    occupied = tmp_path / "file"
    occupied.write_text("in the way")
    done = run(occupied / "home", "run", "--demo")
    assert done.returncode == 3
    assert "MODEL_OPTIMIZER_HOME" in done.stderr


def test_profiles_and_tools_are_listed(tmp_path: Path):
    assert "founding-mix" in run(tmp_path / "home", "traffic").stdout
    tools = {tool["name"]: tool for tool in json.loads(run(tmp_path / "home", "tools", "list", "--json").stdout)}
    assert {"llama.cpp", "vllm", "gguf", "transformers", "demo-model"} <= set(tools)
    assert not any(tool["installed"] for tool in tools.values())


def test_bench_needs_no_run(tmp_path: Path):
    """Any URL: here the mock engine, whose speed is known."""
    mock = Path(__file__).parents[1] / "mock_engine.py"
    server = subprocess.Popen(
        [sys.executable, str(mock), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        url = "http://" + server.stdout.readline().split()[-1]
        profile = tmp_path / "short.yaml"
        profile.write_text(
            "prompt_tokens: {32: 1}\noutput_tokens: 8\nloads: [2]\nseconds_per_load: 1 s\nmin_requests_per_load: 4\n"
        )
        saved = tmp_path / "results.json"
        done = run(
            tmp_path / "home", "bench", url, "--traffic", str(profile), "--slo", "ttft_p99=1 us", "--save", str(saved)
        )
        assert done.returncode == 1, done.stderr
        assert "ttft_p99" in done.stdout
        assert json.loads(saved.read_text())["results"][0]["num_errors"] == 0
    finally:
        server.kill()
        server.communicate()
