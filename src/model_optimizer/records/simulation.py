"""An engine as the simulation sees it: how it schedules, and how long its steps take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from model_optimizer.records.base import Record

Count = Annotated[int, Field(gt=0)]


class SchedulerConfig(Record):
    """The settings that decide which requests share a step.

    ``policy``: ``token-budget`` (vLLM, SGLang: running requests first, then new prompts under one budget) or ``slots``
    (llama.cpp: fixed slots, each with its own share of the context). ``num_kv_tokens``: room of the KV cache.
    ``micro_batch_tokens``: a step's tokens pass the weights in parts of this many (``None``: at once).
    ``graph_tokens``: steps of more tokens are launched kernel by kernel instead of replayed as a captured graph
    (``None``: it makes no difference).
    """

    policy: Literal["token-budget", "slots"] = "token-budget"
    max_num_seqs: Count
    max_num_batched_tokens: Count
    num_kv_tokens: Count
    block_tokens: Count = 16
    chunked_prefill: bool = True
    prefix_caching: bool = True
    long_prefill_threshold: Annotated[int, Field(ge=0)] = 0
    max_model_len: Count
    micro_batch_tokens: Count | None = None
    graph_tokens: Annotated[int, Field(ge=0)] | None = None


class StepSample(Record):
    """One kind of step that was observed: what was in it and how long it took, seconds (median of ``n``).

    ``context_tokens`` is the sum over the sequences that decode; ``prefill_context`` what the prompts' own earlier
    chunks hold. ``is_ttft``: not one step but a lone request's time to its first token, the way in and out included.
    """

    prefill_tokens: float
    decode_seqs: float
    context_tokens: float
    prefill_context: float = 0.0
    seconds: float
    n: int = 1
    is_ttft: bool = False


class StepModel(Record):
    """What an engine's steps and the way to and from it cost, seconds: see simulation/steps.py for the formulas.

    ``fixed_s`` reading the weights once; ``per_…_s`` what each thing in the step adds. ``prompt_floor_s``: the least
    that a step with prompt tokens takes (many small kernels to launch), ``large_floor_s`` the same where no captured
    graph fits. ``overhead_s``: a request's way in and out before its first token, during which others go on.
    ``request_s`` and ``token_s``: what one request and one output token keep the serving process (HTTP, tokenizer,
    detokenizer; one thread) busy. ``residual`` is the median relative error on the samples that it was fitted on.
    """

    fixed_s: float
    per_prefill_token_s: float
    per_prefill_pair_s: float = 0.0
    per_decode_seq_s: float
    per_context_token_s: float = 0.0
    prompt_floor_s: float = 0.0
    large_floor_s: float = 0.0
    overhead_s: float = 0.0
    request_s: float = 0.0
    token_s: float = 0.0
    residual: float | None = None
    num_samples: int = 0
