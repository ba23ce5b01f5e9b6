"""Jobs, score and judgement of the comparison with the reference."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest

from model_optimizer.evaluators import generations
from model_optimizer.evaluators.logits import (
    compare_job,
    degenerate_beyond_reference,
    evaluation_blocks,
    judge,
    reference_job,
    score,
    text_digest,
)
from model_optimizer.records.measurement import AccuracyScore, Generation
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import AccuracyLimits

RESULT: dict[str, Any] = {
    "num_tokens": 4088,
    "reference_perplexity": 18.84,
    "perplexity": 19.03,
    "perplexity_ratio": 1.01,
    "perplexity_ci95": [1.004, 1.016],
    "top1_agreement": 0.95,
    "kl_mean": 0.01,
    "kl_p99": 0.05,
    "kl_is_lower_bound": False,
    "logits_relative_l2": 0.05,
    "num_not_finite": 0,
    "tokenizer_agreement": 1.0,
    "num_probe_positions": 512,
    "method": "hidden_states",
    "kl_top_k": None,
}


def checks(limits: AccuracyLimits | None = None, **changes: Any) -> dict[str, Check]:
    return {check.name: check for check in judge(score(RESULT | changes), limits or AccuracyLimits())}


def answer(prompt: str, text: str, finish: str = "stop") -> Generation:
    return Generation(prompt=prompt, text=text, output_tokens=3, finish_reason=finish)


def test_passages_alternate_and_any_prefix_is_a_mixture():
    blocks = evaluation_blocks()
    assert len(blocks) == 52
    chinese = [sum("\u4e00" <= c <= "\u9fff" for c in block) > 100 for block in blocks]
    assert chinese == [False, True] * 26
    assert not any("%%" in block or "<|" in block for block in blocks)
    assert all(block.endswith("\n\n") and not block.startswith("\n") for block in blocks)


def test_the_text_is_long_enough():
    """20,000 tokens are promised. SmolLM2 needs 24,300; here in characters, since the core has no tokenizer."""
    text = "".join(evaluation_blocks())
    han = sum("\u4e00" <= c <= "\u9fff" for c in text)
    assert len(text) - han > 40_000
    assert han > 6_500


def test_every_packaged_file_has_an_origin():
    folder = files("model_optimizer.evaluators") / "data"
    origin = (folder / "ORIGIN.md").read_text(encoding="utf-8")
    names = {item.name for item in folder.iterdir()} - {"ORIGIN.md", "__init__.py", "__pycache__"}
    assert names == {"eval_en.txt", "eval_zh.txt", "prompts.jsonl"}
    assert all(f"`{name}`" in origin for name in names)


def test_the_digest_follows_the_text(monkeypatch: pytest.MonkeyPatch):
    before = text_digest()
    assert before == text_digest() and len(before) == 64
    monkeypatch.setattr(generations, "PROMPTS", ("another",))
    assert text_digest() != before


def test_reference_job():
    job = reference_job("/m", eval_tokens=1024, engine_args={"dtype": "float32", "n_threads": 2})
    assert (job.tool, job.worker) == ("transformers", "transformers_logits")
    assert job.payload["eval_tokens"] == 1024
    assert job.payload["engine_args"] == {"dtype": "float32", "n_threads": 2}
    assert job.payload["blocks"] == list(evaluation_blocks())
    assert "reference" not in job.payload
    assert job.env["OMP_WAIT_POLICY"] == "PASSIVE"


def test_compare_job():
    assert compare_job("/ref", "/cand").payload == {"reference": "/ref", "candidate": "/cand"}


def test_a_score_keeps_the_numbers_and_survives_storing():
    made = score(RESULT, [answer("p", "Paris.")], [answer("p", "Paris it is.")])
    assert made.perplexity_rise == pytest.approx(0.01)
    assert made.first_divergence_mean == 1.0
    assert AccuracyScore.from_json(made.to_json()) == made


def test_a_good_candidate_keeps_every_limit():
    assert all(check.ok for check in checks().values())
    assert set(checks()) == {"finite logits", "perplexity rise", "top-1 agreement", "KL divergence", "same tokens"}


def test_perplexity_is_judged_by_the_upper_end():
    limits = AccuracyLimits(max_perplexity_rise=0.05)
    within = checks(limits, perplexity_ratio=1.04, perplexity_ci95=[1.031, 1.049])["perplexity rise"]
    above = checks(limits, perplexity_ratio=1.04, perplexity_ci95=[1.02, 1.06])["perplexity rise"]
    assert within.ok is True and within.margin == pytest.approx(0.02)
    assert above.ok is False and above.margin == pytest.approx(-0.2)
    assert above.found == "+4.00 % (95 % interval +2.00 to +6.00 %)"
    assert above.limit == "≤ 5 %, for the upper end"


def test_each_limit_can_be_broken_alone():
    changes: dict[str, dict[str, Any]] = {
        "finite logits": {"num_not_finite": 1},
        "perplexity rise": {"perplexity_ci95": [1.06, 1.08]},
        "top-1 agreement": {"top1_agreement": 0.84},
        "KL divergence": {"kl_mean": 0.11},
        "same tokens": {"tokenizer_agreement": 0.98},
    }
    for name, change in changes.items():
        found = checks(None, **change)
        assert [n for n, check in found.items() if check.ok is False] == [name]


def test_a_lower_bound_is_shown_as_one():
    assert checks(kl_is_lower_bound=True)["KL divergence"].found == "at least 0.01 nats a token"
    assert "same tokens" not in checks(tokenizer_agreement=None)


def test_only_what_the_reference_does_not_do_itself_counts():
    prompts = [str(i) for i in range(4)]
    loop = "no no no no no no no no no"
    reference = [answer(p, loop if p == "0" else "Fine.") for p in prompts]
    same = score(RESULT, reference, reference)
    worse = score(RESULT, [answer(p, loop if p in "01" else "Fine.") for p in prompts], reference)
    elsewhere = score(RESULT, [answer(p, loop if p == "3" else "Fine.") for p in prompts], reference)
    assert degenerate_beyond_reference(same) == 0.0
    assert degenerate_beyond_reference(elsewhere) == 0.0
    assert degenerate_beyond_reference(worse) == 0.25
    found = {check.name: check for check in judge(worse, AccuracyLimits())}["broken answers"]
    assert found.ok is False and found.found == "2 of 4 (reference: 1 of 4)"
    assert {c.name: c.ok for c in judge(worse, AccuracyLimits(max_degenerate=0.25))}["broken answers"] is True
    assert all(check.ok for check in judge(same, AccuracyLimits()))


def test_one_of_twelve_more_is_chance_two_are_not():
    reference = [answer(str(i), "Fine.") for i in range(12)]
    for broken, ok in ((1, True), (2, False)):
        answers = [answer(str(i), "" if i < broken else "Fine.") for i in range(12)]
        found = {check.name: check.ok for check in judge(score(RESULT, answers, reference), AccuracyLimits())}
        assert found["broken answers"] is ok
