"""``diagnose --url`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from model_optimizer.cli.show_live import show_live
from model_optimizer.diagnosis.live import classify
from model_optimizer.kb.live import engine_metrics, regimes
from model_optimizer.records.workload import SLO
from tests.diagnosis.engine_pages import recorded
from tests.loadgen.conftest import MockProcess, mock_engine  # noqa: F401 (a fixture)

RECORDED = Path(__file__).parents[1] / "diagnosis" / "recorded"


def run(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "model_optimizer", "diagnose", *args],
        env={**os.environ, "MODEL_OPTIMIZER_HOME": str(home), "COLUMNS": "100", "MY_KEY": "sk-mock-secret"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_key_is_used_and_never_shown(tmp_path: Path, mock_engine: Callable[..., MockProcess]):  # noqa: F811
    url = mock_engine("--fault", "needs_key").url
    done = run(tmp_path, "--url", url, "--seconds", "2", "--api-key-env", "MY_KEY", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["engine"], found["regime"]) == ("vllm", "idle")
    assert "sk-mock-secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ((), 2, "name a log file"),
        (("x.log", "--url", "http://127.0.0.1:9"), 2, "name a log file"),
        (("--url", "http://127.0.0.1:9"), 4, "no server answers"),
        (("--url", "ftp://x"), 2, "not the address of a server"),
        (("--url", "http://127.0.0.1:9", "--slo", "speed=fast"), 2, "speed"),
        (("--url", "http://127.0.0.1:9", "--seconds", "0.1"), 2, "seconds"),
    ],
)
def test_what_cannot_be_asked_is_said_on_one_screen(tmp_path: Path, args, code, told):
    done = run(tmp_path, *args)
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_the_screen_has_regime_numbers_levers_window_and_slo():
    _, scrapes = recorded(RECORDED / "vllm-cpu-queue.txt")
    slo = SLO.model_validate({"ttft_p50": "1 s", "e2e_p99": "1 s", "ttft_p99": "15 s"})
    console = Console(width=100, record=True, highlight=False)
    with console.capture() as captured:
        show_live(console, classify(scrapes, engine_metrics(), regimes(), slo=slo))
    text = captured.get()
    assert "Requests wait for a place in the batch" in text
    assert "waiting requests: 5.9" in text
    assert "raise --max-num-seqs:" in text
    assert "queue time" in text
    assert "broken  ttft_p50" in text
    assert "undecided  ttft_p99" in text


def test_the_screen_of_an_unknown_server_asks():
    console = Console(width=100)
    with console.capture() as captured:
        show_live(console, classify([], engine_metrics(), regimes()))
    assert "Not enough to tell." in captured.get()
    assert "--enable-metrics" in captured.get()
