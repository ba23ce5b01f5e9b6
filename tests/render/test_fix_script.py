"""The script of fixes: readable, valid shell, and harmless when it is run without reading."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from model_optimizer.doctor import examine
from model_optimizer.kb.conditions import conditions
from model_optimizer.records.doctor import Examination, HostFinding, Seen
from model_optimizer.render.fix_script import fix_script, may_run
from tests.doctor.recorded import HOSTS, host

NAMES = sorted(file.stem for file in HOSTS.glob("*.yaml"))
_ROOT = ("sudo", "reboot", "modprobe", "usermod", "apt-get", "systemctl", "sysctl", "export", "unset")


def script_of(finding: HostFinding) -> str:
    """The script for one finding."""
    return fix_script(Examination(taken_at="now", host="a host", findings=(finding,), num_probes=1, seconds=0))


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_finding_and_nothing_active_needs_root(name: str, tmp_path: Path) -> None:
    found = examine(host(name)[0], conditions())
    text = fix_script(found)
    active = [line for line in text.splitlines() if line and not line.startswith("#") and line != "set -u"]
    assert all(may_run(line) for line in active)
    assert not [line for line in active for word in _ROOT if word in line.split()]
    for finding in found.findings:
        assert (f"({finding.id})" in text) == (finding.severity != "info" and bool(finding.fix))
    file = tmp_path / "fix.sh"
    file.write_text(text)
    assert subprocess.run(["sh", "-n", str(file)], check=False).returncode == 0


@pytest.mark.parametrize(
    "step",
    [
        "sudo nvidia-smi -pl 300",
        "nvidia-smi -c DEFAULT",
        "ls -l x; rm y",
        "ls `id`",
        "ls $(id)",
        "cat a > b",
        "ls 'it",
        "ls -l a\nrm b",
        "lsx",
        "ls | sh",
        "ss&&id",
        "chmod 666 x",
        "export A=1",
    ],
)
def test_what_could_do_harm_is_commented_out(step: str) -> None:
    assert not may_run(step)


@pytest.mark.parametrize("step", ["nvidia-smi -L", "df -h '/a b'", "chmod 600 /home/ada/token", "dkms status"])
def test_looking_is_allowed(step: str) -> None:
    assert may_run(step)


def test_texts_of_the_host_cannot_leave_their_comment(tmp_path: Path) -> None:
    evil = f"x\ntouch {tmp_path}/made\r\u2028touch {tmp_path}/made"
    finding = HostFinding(
        id="a", severity="error", title=evil, cause=evil, evidence=(Seen(source=evil, text=evil),), fix=(evil,),
        verify=(evil,),
    )  # fmt: skip
    file = tmp_path / "fix.sh"
    file.write_text(script_of(finding))
    assert subprocess.run(["sh", str(file)], check=False, capture_output=True).returncode == 0
    assert not (tmp_path / "made").exists()
