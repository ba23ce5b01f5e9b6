"""Routes beside the demo's own: vLLM on the Hugging Face folder, and a GGUF that the user brings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.run import RunManifest
from model_optimizer.stages.intake import demo_file
from tests.e2e.conftest import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

QUICK = """
traffic: {prompt_tokens: {64: 1}, output_tokens: 16, loads: [1, 2], seconds_per_load: 5 s, min_requests_per_load: 4}
accuracy: {eval_tokens: 512, num_prompts: 2, max_degenerate: 100 %}
slo: {error_rate: 1 %}
"""


def quiet(kind: str, **fields: object) -> None:
    """An ``Emit`` that tells nobody."""


@pytest.fixture(scope="module")
def gguf(tools: Path) -> Path:
    """The demo model's own file: a real Q4_1 GGUF."""
    return demo_file(Toolbox(tools, overrides={}, emit=quiet))


def test_vllm_serves_the_folder_as_it_is(new_home: Callable[[], Path], cli: Run, tmp_path: Path):
    request = tmp_path / "vllm.yaml"
    request.write_text("model: demo\nengines: [vllm]\n" + QUICK)
    done = cli(new_home(), "run", str(request), "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    manifest = RunManifest.from_json(done.stdout)
    (verdict,) = manifest.verdicts
    assert verdict.candidate.engine == "vllm"
    assert verdict.accuracy is not None and verdict.measurement is not None
    assert verdict.accuracy.kl_mean < 0.02  # the same weights; bfloat16 where the CPU multiplies it, else float32
    assert verdict.accuracy.kl_is_lower_bound
    assert verdict.measurement.loads[0].num_errors == 0
    assert manifest.tools["vllm"].startswith("0.32.0")


def test_a_gguf_of_ones_own(new_home: Callable[[], Path], cli: Run, tmp_path: Path, gguf: Path):
    request = tmp_path / "gguf.yaml"
    request.write_text(f"model: {gguf}\n" + QUICK)
    home = new_home()
    done = cli(home, "run", str(request), "--json", "--output-dir", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr + done.stdout
    manifest = RunManifest.from_json(done.stdout)
    (verdict,) = manifest.verdicts
    assert verdict.candidate.steps == ()
    assert verdict.candidate.scheme == "q4_1"
    assert verdict.accuracy is not None
    assert verdict.accuracy.kl_mean < 0.05  # against its own dequantized weights: only the kernels differ
    assert manifest.plan is not None
    assert "SOURCE_ALREADY_QUANTIZED" in {refusal.code for refusal in manifest.plan.refused}


def test_an_slo_that_nothing_meets_is_exit_1_with_the_nearest(new_home: Callable[[], Path], cli: Run, tmp_path: Path):
    request = tmp_path / "hopeless.yaml"
    request.write_text("model: demo\nschemes: [q8_0]\n" + QUICK.replace("slo: {", "slo: {tpot_p95: 100 us, "))
    done = cli(new_home(), "run", str(request))
    assert done.returncode == 1, done.stderr
    assert "Nothing meets the SLO" in done.stdout
    assert "q8_0" in done.stdout


def test_ctrl_c_leaves_nothing_behind_and_the_same_line_continues(
    new_home: Callable[[], Path], cli: Run, tmp_path: Path
):
    request = tmp_path / "request.yaml"
    request.write_text("model: demo\nschemes: [q8_0]\n" + QUICK)
    home = new_home()
    child = subprocess.Popen(
        [sys.executable, "-m", "model_optimizer", "run", str(request)],
        env={**os.environ, "MODEL_OPTIMIZER_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not list((home / "runs").glob("*/logs/reference-*.log")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(3)  # in the middle of the reference
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in said
    time.sleep(1)
    left = [p for p in psutil.process_iter() if _home_of(p) == str(home)]
    assert left == []
    assert RunManifest.from_json(cli(home, "status", "--json").stdout).status == "interrupted"
    done = cli(home, "run", str(request), "--json")
    assert done.returncode == 0
    stages = RunManifest.from_json(done.stdout).stages
    assert stages[0].status == "remembered"


def _home_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("MODEL_OPTIMIZER_HOME")
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return None
