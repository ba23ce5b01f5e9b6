"""Regimes of a real llama.cpp under our own load: what was arranged must be what is found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_optimizer import api
from model_optimizer.engines import ENGINES
from model_optimizer.host.probe import cpu_cores
from model_optimizer.host.server import free_port, serve
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.live import LiveDiagnosis
from model_optimizer.records.tooling import Serve
from model_optimizer.stages.intake import demo_file
from tests.e2e.conftest import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLOTS = 2
WINDOW_S = 8.0


def silent(kind: str, **fields: object) -> None:
    pass


@pytest.fixture(scope="module")
def server(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    box = Toolbox(tools, overrides={}, emit=silent, platform="cpu")
    engine = ENGINES["llama.cpp"]
    model = demo_file(box)
    port = free_port()
    wanted = Serve(
        model_path=str(model), port=port, max_model_len=2048, concurrency=SLOTS, cpu_cores=cpu_cores(),
        engine_args={"omp_wait_policy": "passive", "cache_prompt": False},
    )  # fmt: skip
    log = tmp_path_factory.mktemp("live") / "server.log"
    with serve(engine.launch(wanted), box.ensure(engine.TOOL), port=port, log=log, emit=silent) as running:
        yield running.url


@contextlib.contextmanager
def load(url: str, home: Path, **traffic: Any) -> Iterator[None]:
    """Our load test against the server, until the block is left."""
    home.mkdir(exist_ok=True)
    profile = home / "traffic.yaml"
    profile.write_text(json.dumps({"seconds_per_load": 60, **traffic}), encoding="utf-8")
    bench = subprocess.Popen(
        [sys.executable, "-m", "model_optimizer", "bench", url, "--traffic", str(profile), "--json"],
        env={**os.environ, "MODEL_OPTIMIZER_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        bench.send_signal(signal.SIGINT)
        bench.wait(30)
        for _ in range(120):  # what runs in the slots ends some time after its connection
            time.sleep(0.5)
            if "requests_processing 0\n" in urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode():
                break


def watched(url: str, after_s: float, seconds: float = WINDOW_S) -> LiveDiagnosis:
    time.sleep(after_s)
    return api.diagnose_server(url, show=silent, seconds=seconds)


def test_idle(server):
    found = watched(server, 0)
    assert (found.engine, found.regime) == ("llama.cpp", "idle")


def test_more_users_than_slots_queue(server, tmp_path):
    with load(server, tmp_path / "home", prompt_tokens={"48": 1}, output_tokens=48, loads=[8]):
        found = watched(server, 10)
    assert found.regime == "queueing"
    assert found.window is not None and found.window.running == pytest.approx(SLOTS, abs=0.3)
    assert found.window.waiting == pytest.approx(8 - SLOTS, abs=1.5)
    assert "-np" in [lever.flag for lever in found.findings[0].levers]


def test_long_prompts_are_prefill(server, tmp_path):
    with load(server, tmp_path / "home", prompt_tokens={"500": 1}, output_tokens=2, loads=[SLOTS]):
        found = watched(server, 15, seconds=15)
    assert "prefill-bound" in [finding.regime for finding in found.findings]


def test_long_answers_are_decode(server, tmp_path):
    with load(server, tmp_path / "home", prompt_tokens={"32": 1}, output_tokens=96, loads=[SLOTS]):
        found = watched(server, 10)
    assert found.regime == "decode-bound"


def test_one_user_now_and_then_leaves_it_unused(server, tmp_path):
    with load(server, tmp_path / "home", prompt_tokens={"32": 1}, output_tokens=8, loads=["0.4/s"]):
        found = watched(server, 12)
    assert found.regime == "client-bound"


def test_the_command_shows_it(server, tmp_path, cli: Run):
    done = cli(tmp_path, "diagnose", "--url", server, "--seconds", "2")
    assert done.returncode == 0, done.stderr
    assert "llama.cpp" in done.stdout and "Idle" in done.stdout
    assert json.loads(cli(tmp_path, "diagnose", "--url", server, "--seconds", "2", "--json").stdout)["regime"] == "idle"
