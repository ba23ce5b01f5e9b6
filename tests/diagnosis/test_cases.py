"""The score on real public failures (printed with -s, by stage): goals are 90 %, 95 % and 2 %."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from model_optimizer.records.diagnosis import Diagnosis

NEGATIVE = ("none", "unknown")


def test_score(cases: list[dict[str, Any]], ask: Callable[..., Diagnosis]) -> None:
    count: Counter[tuple[str, str]] = Counter()
    for case in cases:
        found = ask(case["log"], case["environment"], case["engine"])
        for what in _marks(case, found):
            count[what, case["stage"]] += 1
            count[what, "all"] += 1
    print("\nstage            right    line shown   wrongly blamed")
    for stage in [*sorted({case["stage"] for case in cases}), "all"]:
        shares = [
            f"{count[part, stage]}/{count[whole, stage]}"
            for part, whole in (("right", "case"), ("shown", "named"), ("blamed", "negative"))
        ]
        print(f"{stage:<14}{shares[0]:>8} {shares[1]:>13} {shares[2]:>16}")
    assert count["right", "all"] >= 0.9 * count["case", "all"]
    assert count["shown", "all"] >= 0.95 * count["named", "all"]
    assert count["blamed", "all"] <= 0.02 * count["negative", "all"]


def _marks(case: dict[str, Any], found: Diagnosis) -> list[str]:
    """What this case counts for: all cases, right verdicts; named causes with their line; negative ones wrongly blamed."""
    want, first = case["root_cause_id"], found.findings[0] if found.findings else None
    marks = ["case"]
    if want in NEGATIVE:
        marks.append("negative")
        marks += ["right"] * (found.verdict == want) + ["blamed"] * (found.verdict == "cause")
        assert found.verdict != "unknown" or found.ask_for
    elif first and first.cause == want:
        marks += ["right", "named"]
        marks += ["shown"] * (case["evidence"].strip() in first.evidence.text)
        assert first.fix and first.verify
    return marks
