"""Every recorded host gets exactly the findings that its file expects."""

from __future__ import annotations

import re

import pytest

from model_optimizer.doctor import examine
from model_optimizer.kb.conditions import conditions
from tests.doctor.recorded import HOSTS, host

NAMES = sorted(file.stem for file in HOSTS.glob("*.yaml"))


def test_there_are_enough_hosts() -> None:
    assert len(NAMES) >= 25


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_those_expected(name: str) -> None:
    survey, told = host(name)
    found = examine(survey, conditions())
    grave = sorted(finding.id for finding in found.findings if finding.severity in ("error", "warning"))
    assert grave == sorted(told["expect"]), [f.model_dump() for f in found.findings]
    assert set(told.get("infos", [])) <= {finding.id for finding in found.findings if finding.severity == "info"}


@pytest.mark.parametrize("name", NAMES)
def test_each_finding_shows_what_was_read_and_leaves_no_place_unfilled(name: str) -> None:
    survey, _ = host(name)
    found = examine(survey, conditions())
    for finding in found.findings:
        assert finding.evidence
        assert all(seen.source and seen.text for seen in finding.evidence)
        for text in (finding.title, finding.cause, *finding.fix, *finding.verify):
            assert not re.search(r"(?<![{$])\{[a-z_]+\}(?!\})", text), text
        if finding.severity != "info":
            assert finding.fix
    order = ["error", "warning", "info"]
    ranks = [order.index(finding.severity) for finding in found.findings]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("healthy")])
def test_a_healthy_host_is_told_what_it_can_do(name: str) -> None:
    survey, told = host(name)
    found = examine(survey, conditions())
    assert found.severity in ("ok", "info")
    assert ("engines on the GPU" in found.works[0]) == ("gpus" in told)
