"""``doctor`` from the outside, on the machine that runs the tests and on recorded ones."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model_optimizer.cli.app import app
from model_optimizer.cli.screen import error_screen
from model_optimizer.records.doctor import Reading, Survey
from tests.doctor.recorded import host

SECRET = "hf_" + "aBcDeFgHiJkLmNoP" * 2


def doctor(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own where variables are given, else in this one; white space made even."""
    words = ["doctor", *map(str, arguments)]
    if variables:
        env = {**os.environ, **variables}
        line = [sys.executable, "-m", "model_optimizer", *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=120, env=env, check=False)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["model-optimize", *words])
        patch.setenv("COLUMNS", "80")
        code = error_screen(app)
    return subprocess.CompletedProcess(words, code, out.getvalue(), " ".join(err.getvalue().split()))


def saved(survey: Survey, folder: Path) -> Path:
    """The survey as a file for ``--from``."""
    file = folder / "survey.json"
    file.write_text(survey.model_dump_json())
    return file


def test_this_machine_is_examined_and_its_secrets_stay_out(tmp_path: Path) -> None:
    file = tmp_path / "survey.json"
    done = doctor(
        "--json", "--survey", file, HF_TOKEN=SECRET, http_proxy="http://ada:pa55word@proxy.example:3128", no_proxy=""
    )
    found: dict[str, Any] = json.loads(done.stdout)
    severities = {finding["severity"] for finding in found["findings"]}
    assert done.returncode == (3 if "error" in severities else 0)
    assert found["num_probes"] >= 40
    assert found["works"]
    assert "proxy-takes-loopback" in {finding["id"] for finding in found["findings"]}
    assert "hub-token-absent" not in {finding["id"] for finding in found["findings"]}
    for finding in found["findings"]:
        assert {"id", "severity", "title", "cause", "evidence", "fix", "verify", "fact"} <= finding.keys()
    for text in (done.stdout, done.stderr, file.read_text()):
        assert SECRET not in text
        assert "pa55word" not in text


def test_the_survey_of_this_machine_examined_again_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "survey.json"
    first = json.loads(doctor("--json", "--survey", file).stdout)
    again = json.loads(doctor("--json", "--from", file).stdout)
    assert again["findings"] == first["findings"]
    assert again["host"] == first["host"]
    readings = Survey.model_validate_json(file.read_bytes()).readings
    assert readings["meminfo"].text == "" or "MemTotal" in readings["meminfo"].text
    if Path("/proc/cpuinfo").exists():
        assert f"{os.cpu_count()} processors" in first["host"]


@pytest.mark.parametrize(
    ("name", "plain", "strict"),
    [("healthy-h200", 0, 0), ("nfs-models", 0, 1), ("nouveau", 3, 3)],
)
def test_the_exit_code_is_the_worst_finding(name: str, plain: int, strict: int, tmp_path: Path) -> None:
    file = saved(host(name)[0], tmp_path)
    assert doctor("--from", file).returncode == plain
    assert doctor("--from", file, "--strict").returncode == strict


def test_the_screen_names_finding_evidence_cause_fix_and_keeps_to_80_columns(tmp_path: Path) -> None:
    done = doctor("--from", saved(host("driver-library-mismatch")[0], tmp_path))
    assert max(map(len, done.stdout.splitlines())) <= 80
    for wanted in ("error", "driver-library-mismatch", "580.65.06", "cause", "fix", "verify", "sudo modprobe nvidia"):
        assert wanted in done.stdout


def test_the_script_is_written_once_and_never_over_a_file(tmp_path: Path) -> None:
    file, script = saved(host("no-uvm")[0], tmp_path), tmp_path / "fix.sh"
    assert doctor("--from", file, "--fix-script", script).returncode == 3
    before = script.read_text()
    assert "uvm-missing" in before
    again = doctor("--from", file, "--fix-script", script)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert script.read_text() == before
    healthy = saved(host("healthy-h200")[0], tmp_path)
    assert doctor("--from", healthy, "--fix-script", script, "--force").returncode == 0
    assert "Nothing to fix" in script.read_text()


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00\xff", b"[1]", b'{"taken_at": 1, "readings": []}'])
def test_a_file_that_is_no_survey_is_refused_with_a_reason(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "survey.json"
    file.write_bytes(content)
    done = doctor("--from", file)
    assert done.returncode == 2
    assert "is not a survey" in done.stderr


def test_a_survey_with_markup_in_it_is_shown_as_it_is(tmp_path: Path) -> None:
    survey, _ = host("nfs-models")
    release = Reading(source="/etc/os-release", text='PRETTY_NAME="[bold]Odd[/] [/nonsense]"')
    done = doctor(
        "--from", saved(survey.model_copy(update={"readings": survey.readings | {"os-release": release}}), tmp_path)
    )
    assert done.returncode == 0
    assert "[bold]Odd[/] [/nonsense]" in done.stdout
