"""Taking a survey: every way a probe can go is noted, nothing raises, and secrets are struck out."""

from __future__ import annotations

import sys

import pytest

from model_optimizer.host.survey import MOST_CHARS, Probe, take_survey
from model_optimizer.host.system_texts import masked
from model_optimizer.records.doctor import Survey


def raising(error: Exception) -> Probe:
    """A probe that meets this error."""

    def ask() -> str:
        raise error

    return Probe("a source", ask)


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """A survey of a made-up root, with probes that fare badly."""
    root = tmp_path_factory.mktemp("root")
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_bytes(b"MemTotal: 1024 kB\n\xff\xfe")
    python = sys.executable
    return take_survey(
        home=root / "home",
        root=root,
        environ={"HF_TOKEN": "hf_0123456789abcdef0123", "https_proxy": "http://ada:pass@proxy:1", "UNRELATED": "x"},
        extra={
            "denied": raising(PermissionError("no")),
            "gone": raising(FileNotFoundError("gone")),
            "broken": raising(OSError(5, "input/output error")),
            "bug": raising(KeyError("unexpected")),
            "long": Probe("long", lambda: "x" * (2 * MOST_CHARS)),
            "slow": Probe("slow", command=(python, "-c", "import time; time.sleep(30)"), limit_s=0.5),
            "fails": Probe("fails", command=(python, "-c", "print('why'); raise SystemExit(9)")),
            "no-program": Probe("none", command=("no-such-program-here",)),
        },
    )


@pytest.mark.parametrize(
    ("probe", "status"),
    [
        ("meminfo", "ok"), ("cpuinfo", "absent"), ("denied", "denied"), ("gone", "absent"), ("broken", "failed"),
        ("bug", "failed"), ("long", "ok"), ("slow", "timeout"), ("fails", "failed"), ("no-program", "absent"),
    ],
)  # fmt: skip
def test_each_way_a_probe_can_go_is_noted(survey: Survey, probe: str, status: str) -> None:
    assert survey.status(probe) == status


def test_what_was_read_is_kept_and_bounded(survey: Survey) -> None:
    assert survey.text("meminfo").startswith("MemTotal: 1024 kB")
    assert len(survey.text("long")) == MOST_CHARS
    assert "why" in survey.text("fails")
    assert survey.readings["fails"].exit_code == 9
    assert survey.readings["slow"].seconds < 10


def test_no_secret_and_nothing_unrelated_is_kept(survey: Survey) -> None:
    text = survey.model_dump_json()
    assert "hf_0123456789" not in text
    assert "ada:pass" not in text
    assert "HF_TOKEN=(set)" in survey.text("environment")
    assert "UNRELATED" not in survey.text("environment")


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("https://ada:pa55@host/x", "pa55"),
        ("index https://host/simple?token=abc123", "abc123"),
        ("key sk-abcdefghijklmnop", "abcdefghijklmnop"),
        ("ada:pa55@proxy:3128", "pa55"),
    ],
)
def test_masked_strikes_out_logins_and_tokens(text: str, gone: str) -> None:
    assert gone not in masked(text)


def test_masked_leaves_ordinary_lines_alone() -> None:
    line = "NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus."
    assert masked(line) == line
