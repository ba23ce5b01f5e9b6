"""Logits and perplexity: the jobs that compute them, the score, and the judgement. Reasons: docs/accuracy.md.

A *reference* folder holds what the unoptimised model says about the packaged text; a *candidate* folder what an engine
says about the same token ids. Every engine's ``logits_job`` runs a worker with the payload ``{"model", "reference",
"engine_args"}`` whose target becomes a candidate folder. What the folders hold: workers/transformers_logits.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from model_optimizer.evaluators import generations
from model_optimizer.records.base import canonical_json
from model_optimizer.records.measurement import AccuracyScore, Generation
from model_optimizer.records.tooling import Job
from model_optimizer.records.verdict import Check
from model_optimizer.records.workload import AccuracyLimits
from model_optimizer.units import format_share

REFERENCE_TOOL = "transformers"
COMPARE_TOOL = "transformers"

CHUNK = 512
"""Tokens of one sequence. Long enough for context to matter, short enough that 4096 tokens give eight sequences."""

PROBES = 512
"""Positions whose whole distribution is kept, evenly spread: 50 MB with a vocabulary of 49,152."""

MIN_TOKENIZER_AGREEMENT = 0.99
"""Below this share of common ids an engine reads other prompts than the reference does. Rare characters may differ."""

_PASSAGE = re.compile(r"^%% .*\n", re.MULTILINE)
# OpenMP's threads wait for each other by sleeping: where other programs run too, torch is about twice as fast so.
_TORCH_ENV = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
_REFERENCE_BYTES = 300 * 10**6
_TIMEOUT_S = 4 * 3600.0


def evaluation_blocks() -> tuple[str, ...]:
    """The packaged passages, English and Chinese by turns: a prefix of any length is a mixture of both."""
    folder = files("model_optimizer.evaluators") / "data"
    english, chinese = (
        [passage.strip() + "\n\n" for passage in _PASSAGE.split((folder / name).read_text(encoding="utf-8"))[1:]]
        for name in ("eval_en.txt", "eval_zh.txt")
    )
    return tuple(passage for pair in zip(english, chinese, strict=True) for passage in pair)


def text_digest() -> str:
    """SHA-256 of everything packaged that scores depend on: passages, prompts, sequence length, number of probes."""
    content = {"blocks": evaluation_blocks(), "prompts": generations.PROMPTS, "chunk": CHUNK, "probes": PROBES}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def reference_job(
    model_path: str, *, eval_tokens: int, engine_args: Mapping[str, str | int | float | bool] | None = None
) -> Job:
    """The job that fills its target with the reference of this model, a Hugging Face folder.

    Its result holds ``perplexity``, ``num_tokens``, ``dtype``, ``seconds``. ``engine_args``: ``dtype`` (default
    float32), ``device``, ``n_threads``, ``attn_implementation``, ``trust_remote_code``.
    """
    payload = {
        "model": model_path,
        "blocks": list(evaluation_blocks()),
        "eval_tokens": eval_tokens,
        "chunk": CHUNK,
        "probes": PROBES,
        "engine_args": dict(engine_args or {}),
    }
    return Job(
        tool=REFERENCE_TOOL,
        worker="transformers_logits",
        payload=payload,
        env=_TORCH_ENV,
        timeout_s=_TIMEOUT_S,
        expected_output_bytes=_REFERENCE_BYTES,
    )


def compare_job(reference: str, candidate: str) -> Job:
    """The job that compares two folders; its result is what ``score`` takes. It fills no target."""
    return Job(
        tool=COMPARE_TOOL,
        worker="compare_logits",
        payload={"reference": reference, "candidate": candidate},
        env=_TORCH_ENV,
        timeout_s=1800.0,
    )


def score(
    result: Mapping[str, Any], answers: Sequence[Generation] = (), reference_answers: Sequence[Generation] = ()
) -> AccuracyScore:
    """A comparison's result, and the served answers of candidate and reference with their problems marked."""
    known = {name: value for name, value in result.items() if name in AccuracyScore.model_fields}
    return AccuracyScore.model_validate(
        {
            **known,
            "generations": generations.checked(answers, reference_answers),
            "reference_generations": generations.checked(reference_answers),
            "first_divergence_mean": generations.first_divergence_mean(answers, reference_answers),
        }
    )


def judge(score: AccuracyScore, limits: AccuracyLimits) -> tuple[Check, ...]:
    """Each limit with what was found. The perplexity rise is judged by the upper end of its 95 % interval."""
    checks = [
        Check(
            name="finite logits",
            limit="NaN or infinite at no position",
            found=f"at {score.num_not_finite} of {score.num_tokens} positions"
            if score.num_not_finite
            else "all finite",
            ok=score.num_not_finite == 0,
        ),
        _perplexity(score, limits),
        _at_least(
            "top-1 agreement", score.top1_agreement, limits.min_top1_agreement, format_share(score.top1_agreement)
        ),
        _at_most(
            "KL divergence",
            score.kl_mean,
            limits.max_kl,
            f"{'at least ' if score.kl_is_lower_bound else ''}{score.kl_mean:.3g} nats a token",
            f"{limits.max_kl:g} nats a token",
        ),
    ]
    if score.tokenizer_agreement is not None:
        found = format_share(score.tokenizer_agreement)
        checks.append(_at_least("same tokens", score.tokenizer_agreement, MIN_TOKENIZER_AGREEMENT, found))
    if score.generations:
        checks.append(_degenerate(score, limits))
    return tuple(checks)


def degenerate_beyond_reference(score: AccuracyScore) -> float:
    """Share of broken answers minus the reference's own share, never below zero.

    A small model loops by itself; only what optimising added counts.
    """
    own = score.reference_generations
    reference = sum(g.problem is not None for g in own) / len(own) if own else 0.0
    return max(0.0, score.degenerate_share - reference)


def _perplexity(score: AccuracyScore, limits: AccuracyLimits) -> Check:
    low, high = (end - 1.0 for end in score.perplexity_ci95)
    found = f"{score.perplexity_rise * 100:+.2f} % (95 % interval {low * 100:+.2f} to {high * 100:+.2f} %)"
    limit = limits.max_perplexity_rise
    return _at_most("perplexity rise", high, limit, found, f"{format_share(limit)}, for the upper end")


def _degenerate(score: AccuracyScore, limits: AccuracyLimits) -> Check:
    total, own = len(score.generations), len(score.reference_generations)
    broken = sum(g.problem is not None for g in score.generations)
    reference = sum(g.problem is not None for g in score.reference_generations)
    beyond, limit = degenerate_beyond_reference(score), limits.max_degenerate
    return Check(
        name="broken answers",
        limit=f"≤ the reference's share + {format_share(limit)}" if limit else "no larger share than the reference's",
        found=f"{broken} of {total} (reference: {reference} of {own})",
        ok=beyond <= limit,
        margin=(limit - beyond) / limit if limit else None,
    )


def _at_most(name: str, value: float, limit: float, found: str, limit_text: str) -> Check:
    margin = (limit - value) / limit if limit else None
    return Check(name=name, limit=f"≤ {limit_text}", found=found, ok=value <= limit, margin=margin)


def _at_least(name: str, value: float, limit: float, found: str) -> Check:
    margin = (value - limit) / limit if limit else None
    return Check(name=name, limit=f"≥ {format_share(limit)}", found=found, ok=value >= limit, margin=margin)
