"""The demo, whole: a real model, real engines, the real command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from model_optimizer.records.run import RunManifest
from tests.e2e.conftest import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


class Demo:
    """The finished demo: its home, what it took, what it printed, its manifest."""

    def __init__(self, home: Path, seconds: float, output: str, errors: str, code: int) -> None:
        self.home, self.seconds, self.output, self.errors, self.code = home, seconds, output, errors, code
        folder = next((home / "runs").iterdir())
        self.folder = folder
        self.manifest = RunManifest.from_json((folder / "manifest.json").read_bytes())


@pytest.fixture(scope="module")
def demo(new_home: Callable[[], Path], cli: Run) -> Demo:
    home = new_home()
    started = time.monotonic()
    done = cli(home, "run", "--demo")
    return Demo(home, time.monotonic() - started, done.stdout, done.stderr, done.returncode)


def test_it_finds_a_winner_in_minutes(demo: Demo):
    assert demo.code == 0, demo.errors
    assert demo.seconds < 15 * 60
    winner = demo.manifest.winning
    assert winner is not None
    assert "Winner" in demo.output
    assert "Traceback" not in demo.errors


def test_every_candidate_has_a_verdict_with_its_reason(demo: Demo):
    assert demo.manifest.plan is not None
    planned = [p.candidate.id for p in demo.manifest.plan.candidates]
    assert [v.candidate.id for v in demo.manifest.verdicts] == planned
    assert {v.candidate.scheme for v in demo.manifest.verdicts} == {"q8_0", "q4_k_m", "f16"}
    assert all(v.reason for v in demo.manifest.verdicts)
    assert any(r.route == "as-is · vllm" for r in demo.manifest.plan.refused) or len(planned) > 3


def test_the_winner_beats_the_baseline_by_a_wide_margin(demo: Demo):
    base, winner = demo.manifest.baseline, demo.manifest.winning
    assert base is not None and winner is not None and winner.measurement is not None
    ours, theirs = winner.measurement.loads[0], base.measurement.loads[0]
    assert ours.output_tokens_per_s > 3 * theirs.output_tokens_per_s  # the record states the ratio on a quiet machine
    assert winner.measurement.server is not None and base.measurement.server is not None
    assert winner.measurement.server.peak_memory_bytes < 0.6 * base.measurement.server.peak_memory_bytes


def test_quality_is_what_it_should_be(demo: Demo):
    by_scheme = {v.candidate.scheme: v.accuracy for v in demo.manifest.verdicts}
    f16, q8, q4 = by_scheme["f16"], by_scheme["q8_0"], by_scheme["q4_k_m"]
    assert f16 is not None and q8 is not None and q4 is not None
    assert f16.kl_mean < 1e-3
    assert f16.top1_agreement > 0.98
    assert f16.kl_mean < q8.kl_mean < q4.kl_mean
    assert abs(q8.perplexity_rise) < 0.02
    assert q8.tokenizer_agreement == pytest.approx(1.0, abs=0.01)


def test_no_prompt_was_answered_from_a_cache(demo: Demo):
    measured = [v.measurement for v in demo.manifest.verdicts if v.measurement is not None]
    for result in (load for m in measured for load in m.loads):
        assert result.num_errors == 0
        assert result.usage_reported
        assert result.cached_prompt_share is None or result.cached_prompt_share < 0.02


def test_the_second_time_takes_seconds_and_remembers_everything(demo: Demo, cli: Run):
    started = time.monotonic()
    again = cli(demo.home, "run", "--demo", "--json")
    seconds = time.monotonic() - started
    assert again.returncode == 0
    assert seconds < 10
    manifest = RunManifest.from_json(again.stdout)
    assert {stage.status for stage in manifest.stages} == {"remembered"}
    assert [v.outcome for v in manifest.verdicts] == [v.outcome for v in demo.manifest.verdicts]
    assert len(list((demo.home / "runs").iterdir())) == 1


def test_status_report_and_runs(demo: Demo, cli: Run, tmp_path: Path):
    status = cli(demo.home, "status")
    assert "remembered" in status.stdout or "run" in status.stdout
    assert demo.folder.name in cli(demo.home, "status", "--all").stdout
    page = tmp_path / "page.html"
    assert cli(demo.home, "report", "--to", str(page)).stdout.strip() == str(page)
    assert "<html" in page.read_text()[:500].lower()
    data = json.loads(cli(demo.home, "report", "--json").stdout)
    assert data["winner"] == demo.manifest.winner


def test_the_founding_one_liner(demo: Demo, tmp_path: Path):
    """The alias finds the demo's results, and puts report and model where it was told."""
    import os
    import subprocess
    import sys

    target = tmp_path / "out"
    done = subprocess.run(
        [
            sys.executable, "-c", "from model_optimizer.cli.founding import main; main()",
            "--model-path", "demo", "--target-gpu", "cpu", "--quantization", "q4_k_m",
            "--output-dir", str(target), "--validate",
        ],
        env={**os.environ, "MODEL_OPTIMIZER_HOME": str(demo.home)},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert (target / "report.html").is_file()
    manifest = RunManifest.from_json((target / "manifest.json").read_bytes())
    assert [v.candidate.scheme for v in manifest.verdicts] == ["q4_k_m"]
    if manifest.winner:
        assert list((target / "model").glob("*.gguf"))
