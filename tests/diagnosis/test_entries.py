"""Every entry of the knowledge recognises its own samples, and none of its patterns is tried on too few lines."""

import re
from pathlib import Path

import pytest
import yaml

from model_optimizer.diagnosis.anchors import anchors
from model_optimizer.kb.causes import causes

SAMPLES = [(c, s) for c in causes() for s in c.samples]
PARAPHRASED = yaml.safe_load((Path(__file__).parent / "paraphrased.yaml").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize(("cause", "sample"), SAMPLES, ids=[f"{c.id}-{c.samples.index(s)}" for c, s in SAMPLES])
def test_sample(cause, sample, ask):
    found = ask(sample.log, dict(sample.facts))
    if cause.kind == "cause":
        assert found.verdict == "cause"
        assert found.findings[0].cause == cause.id
        assert sample.evidence in found.findings[0].evidence.text
    elif cause.kind == "harmless":
        assert found.verdict == "none"
    else:
        assert found.verdict == "unknown"
        assert set(cause.ask_for) <= set(found.ask_for)


@pytest.mark.parametrize(("want", "log", "shows"), PARAPHRASED, ids=[f"{n}-{c[0]}" for n, c in enumerate(PARAPHRASED)])
def test_other_wording(want, log, shows, ask):
    found = ask(log)
    first = found.findings[0] if found.findings else None
    assert (first.cause if first else found.verdict) == want
    assert not first or shows in first.evidence.text


def test_every_named_cause_is_known(named_causes):
    known = {c.id for c in causes() if c.kind == "cause"}
    assert set(named_causes) <= known


def test_entries_say_what_to_do():
    for cause in causes():
        if cause.kind == "cause":
            assert cause.sources, cause.id
            assert re.search(r"[\u4e00-\u9fff]|^[A-Z]", cause.title_zh), cause.id
            assert set(cause.outranks) <= {c.id for c in causes()}, cause.id


def test_anchors_stand_on_every_line_that_a_pattern_matches(cases):
    """An anchor that its author got wrong would make a pattern blind without a word."""
    texts = [s.log for c in causes() for s in c.samples] + [log for _, log, _ in PARAPHRASED]
    lines = {line for text in [*texts, *(case["log"] for case in cases)] for line in text.splitlines()}
    blind = []
    for pattern in {p for c in causes() for p in c.patterns}:
        words, compiled = anchors(pattern), re.compile(pattern, re.IGNORECASE)
        for line in filter(compiled.search, lines):
            tokens = set(re.sub(r"[\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]", " ", line.lower()).split())
            if not any(
                w.strip("~") in line.lower() if w.startswith("~") or not w.isascii() else w in tokens for w in words
            ):
                blind.append((pattern, line))
    assert blind == []
