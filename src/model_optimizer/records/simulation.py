"""An engine as the simulation sees it: how it schedules, and how long its steps take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from model_optimizer.records.base import Record


class SchedulerConfig(Record):
    """The settings that decide which requests share a step.

    ``policy``: ``token-budget`` (vLLM, SGLang: decodes first, then prompt chunks under one budget) or ``slots``
    (llama.cpp: fixed slots, each with its own share of the context). ``num_kv_tokens``: room of the KV cache.
    """

    policy: Literal["token-budget", "slots"] = "token-budget"
    max_num_seqs: Annotated[int, Field(gt=0)]
    max_num_batched_tokens: Annotated[int, Field(gt=0)]
    num_kv_tokens: Annotated[int, Field(gt=0)]
    block_tokens: Annotated[int, Field(gt=0)] = 16
    chunked_prefill: bool = True
    prefix_caching: bool = True
    long_prefill_threshold: int = 0
    max_model_len: Annotated[int, Field(gt=0)]


class StepSample(Record):
    """One kind of step that was observed: what was in it and how long it took, seconds (median of ``n``).

    ``context_tokens`` is the sum over the sequences that decode; ``prefill_context`` what the prompts' own earlier
    chunks hold.
    """

    prefill_tokens: float
    decode_seqs: float
    context_tokens: float
    prefill_context: float = 0.0
    seconds: float
    n: int = 1


class StepModel(Record):
    """Step time, seconds: see simulation/steps.py for the formula. ``overhead_s`` is what a request takes outside of
    steps (HTTP, tokenizer, detokenizer) before its first token.

    ``residual`` is the median relative error on the samples that it was fitted on.
    """

    fixed_s: float
    per_prefill_token_s: float
    per_prefill_pair_s: float = 0.0
    per_decode_seq_s: float
    per_context_token_s: float = 0.0
    overhead_s: float = 0.0
    residual: float | None = None
    num_samples: int = 0
