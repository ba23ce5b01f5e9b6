"""TTFT, TPOT, ITL and E2E of one request: the only place where these formulas exist.

Tools disagree about the words (vLLM's ``benchmarks/serve.py`` and genai-bench define TPOT as here, guidellm's
includes the first token, aiperf calls our TPOT "ITL" and our ITL "ICL"), so compare numbers, never names.

Every time starts at ``scheduled_s``, the moment the request *should* have left: measured from the actual send, a client
that falls behind would hide the very queueing it causes (coordinated omission). A failed request has no latencies; it
counts in the error rate and is never good.
"""

from __future__ import annotations

from itertools import pairwise

from model_optimizer.records.measurement import RequestTrace


def ttft_s(trace: RequestTrace) -> float | None:
    """Time to first token, seconds: first non-empty chunk − scheduled send time. ``None`` for a failed request."""
    if trace.error is not None or not trace.chunk_s:
        return None
    return trace.chunk_s[0] - trace.scheduled_s


def e2e_s(trace: RequestTrace) -> float | None:
    """End-to-end latency, seconds: last non-empty chunk − scheduled send time. ``None`` for a failed request."""
    if trace.error is not None or not trace.chunk_s:
        return None
    return trace.chunk_s[-1] - trace.scheduled_s


def tpot_s(trace: RequestTrace) -> float | None:
    """Time per output token after the first, seconds: (E2E − TTFT) / (output tokens − 1).

    Undefined (``None``) for one token, for a failed request, and for an answer that came in one chunk: its tokens
    were not streamed, so nothing is known about the time between them.
    """
    tokens = output_tokens(trace)
    if trace.error is not None or len(trace.chunk_s) < 2 or tokens < 2:
        return None
    return (trace.chunk_s[-1] - trace.chunk_s[0]) / (tokens - 1)


def itl_s(trace: RequestTrace) -> tuple[float, ...]:
    """Inter-token latencies, seconds: the gaps between consecutive non-empty chunks; pool them over requests.

    A chunk may hold several tokens (speculative decoding, busy servers), so ITL is what a reader sees and not TPOT.
    """
    if trace.error is not None:
        return ()
    return tuple(later - earlier for earlier, later in pairwise(trace.chunk_s))


def output_tokens(trace: RequestTrace) -> int:
    """Output tokens as the server counts them; where it reports no usage, the chunks, which may hold several tokens
    each.
    """
    return len(trace.chunk_s) if trace.output_tokens is None else trace.output_tokens


def prompt_tokens(trace: RequestTrace) -> int:
    """Prompt tokens as the server counts them; where it reports no usage, the number that was aimed at."""
    return trace.target_prompt_tokens if trace.prompt_tokens is None else trace.prompt_tokens
