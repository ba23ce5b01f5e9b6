"""SIGKILL at random moments in the real pipeline, then finish: nothing is done twice but the step that was hit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from model_optimizer.records.run import RunManifest
from tests.e2e.conftest import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

KILLS = 20
REQUEST = """
model: demo
engines: [llama.cpp]
schemes: [q8_0, q4_k_m]
traffic: {prompt_tokens: {48: 1}, output_tokens: 8, loads: [1], seconds_per_load: 2 s, min_requests_per_load: 4}
slo: {error_rate: 1 %}
accuracy:
  {eval_tokens: 512, num_prompts: 2, max_kl: 1, min_top1_agreement: 0.5, max_perplexity_rise: 50 %, max_degenerate: 1}
"""


def processes_of(home: Path) -> list[psutil.Process]:
    """Living processes that were started for this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MODEL_OPTIMIZER_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def events_of(home: Path) -> list[dict[str, object]]:
    files = list((home / "runs").glob("*/events.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def kill_until_it_finishes(home: Path, request: Path, chance: random.Random) -> int:
    """Run and kill at random moments until a run lives to its end; the number of kills."""
    kills = 0
    while True:
        child = subprocess.Popen(
            [sys.executable, "-m", "model_optimizer", "run", str(request)],
            env={**os.environ, "MODEL_OPTIMIZER_HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert child.wait(timeout=chance.choice([chance.uniform(0.3, 3), chance.uniform(3, 25)])) == 0
            return kills
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
            deadline = time.monotonic() + 5
            while processes_of(home) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert processes_of(home) == []


def test_killed_twenty_times_it_still_ends_the_same(new_home: Callable[[], Path], cli: Run, tmp_path: Path):
    request = tmp_path / "request.yaml"
    request.write_text(REQUEST)
    straight = new_home()
    assert cli(straight, "run", str(request)).returncode == 0
    expected = RunManifest.from_json(cli(straight, "status", "--json").stdout)

    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, total = random.Random(seed), 0
    while total < KILLS:
        home = new_home()
        kills = kill_until_it_finishes(home, request, chance)
        total += kills
        found = RunManifest.from_json(cli(home, "status", "--json").stdout)
        assert outcomes(found) == outcomes(expected)
        events = events_of(home)
        starts = Counter(str(event["key"]) for event in events if event["kind"] == "stage_started")
        assert sum(starts.values()) - len(starts) <= kills
        finished = Counter(e["key"] for e in events if e["kind"] == "stage_finished" and e["status"] == "run")
        assert max(finished.values()) == 1
        assert [path for path in (home / "staging").iterdir() if path.name.startswith(tuple(starts))] == []


def outcomes(manifest: RunManifest) -> list[tuple[str, str, str | None]]:
    """Each candidate with what became of it and the digest of what was built."""
    return [(v.candidate.id, v.outcome, v.artifact.content_digest if v.artifact else None) for v in manifest.verdicts]
