"""Taking a survey within its time: a source that hangs or fails hides nothing, and no secret is kept."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from model_optimizer.host.survey import COMMANDS, Probe, take_survey
from model_optimizer.records.doctor import Survey


def put(root: Path, path: str, text: str) -> None:
    """A file below the made-up root."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_made_up_root_is_read(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", "MemTotal: 8 kB\n")
    put(tmp_path, "etc/os-release", "ID=debian\n")
    put(tmp_path, "mnt/c/Users/ada/.wslconfig", "[wsl2]\nmemory=6GB\n")
    put(tmp_path, "sys/devices/system/node/has_cpu", "0-1\n")
    survey = take_survey(home=tmp_path / "home", root=tmp_path, environ={"LANG": "C.UTF-8"})
    assert survey.text("meminfo") == "MemTotal: 8 kB\n"
    assert "memory=6GB" in survey.text("wslconfig")
    assert survey.text("numa") == "/sys/devices/system/node/has_cpu: 0-1"
    assert survey.text("environment") == "LANG=C.UTF-8"
    assert survey.status("cpuinfo") == "absent"
    assert set(COMMANDS) <= set(survey.readings)


def test_a_probe_that_fails_hides_nothing(tmp_path: Path) -> None:
    def stumble() -> str:
        raise ValueError("not a number")

    def forbid() -> str:
        raise PermissionError(13, "no")

    extra = {
        "stumbles": Probe("a probe", stumble),
        "forbidden": Probe("a probe", forbid),
        "gone": Probe("a network disk", ask=lambda: str(threading.Event().wait(30)), limit_s=0.3),
        "hangs": Probe("sleep 60", command=("sleep", "60"), limit_s=0.3),
        "fails": Probe("false", command=("false",)),
        "missing": Probe("no-such-program", command=("no-such-program-here",)),
    }
    began = time.monotonic()
    survey = take_survey(home=tmp_path, environ={}, extra=extra)
    assert time.monotonic() - began < 20
    wanted = {
        "stumbles": "failed",
        "forbidden": "denied",
        "gone": "timeout",
        "hangs": "timeout",
        "fails": "failed",
        "missing": "absent",
    }
    assert {name: survey.status(name) for name in wanted} == wanted
    assert "MemTotal" in survey.text("meminfo")


def test_secrets_do_not_reach_a_survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_ThisIsNoRealTokenAtAll"
    environ = {"HF_TOKEN": secret, "https_proxy": f"http://ada:{secret}@proxy:1", "HF_HOME": str(tmp_path)}
    monkeypatch.setenv("HF_TOKEN", secret)
    extra = {"echo": Probe("echo", command=("echo", f"token {secret}")), "text": Probe("text", lambda: secret)}
    survey = take_survey(home=tmp_path, environ=environ, extra=extra)
    assert secret not in survey.model_dump_json()
    assert survey.readings["echo"].exit_code == 0


def test_a_survey_is_written_and_read_back(tmp_path: Path) -> None:
    survey = take_survey(home=tmp_path, root=tmp_path, environ={})
    assert Survey.model_validate_json(survey.model_dump_json()) == survey
