"""How long a step takes, and the few numbers of it that are fitted to what a server showed.

    step = max(floor, passes · fixed, k · prompt tokens + q · pairs) + s · sequences + c · context

``fixed``: reading the weights, once for every pass (a pass holds ``micro_batch_tokens`` at most), during which a short
prompt's arithmetic is done in passing (a roofline). ``k``: arithmetic of a prompt token, ``q``: attention between a
prompt token and each one before it. ``s``: what a sequence that decodes adds (arithmetic, sampling, book-keeping),
``c``: reading one token of its KV cache. ``floor``: a step with prompt tokens is not one captured graph but many
kernels, each launched by the host; below some hundred tokens the GPU waits for the host, and longer still beyond the
largest captured size (``graph_tokens``). On a CPU the floor is 0.

Around the steps: a request passes the serving process (``request_s`` of its one thread), travels (``overhead_s``), and
every token passes the same thread again (``token_s``). At thousands of tokens a second that thread, not the GPU, is
what users wait for.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_optimizer.records.simulation import SchedulerConfig, StepModel, StepSample

Floats = NDArray[np.float64]


LONG_TOKENS = 3000


def step_s(
    model: StepModel, config: SchedulerConfig, prefill: float, pairs: float, decodes: float, context: float
) -> float:
    """Seconds of one step with these contents."""
    tokens = prefill + decodes
    part = config.micro_batch_tokens
    passes = 1 if part is None or tokens <= part else -(-tokens // part)
    work = passes * model.fixed_s
    if prefill:
        large = config.graph_tokens is not None and tokens > config.graph_tokens
        floor = model.large_floor_s if large else model.prompt_floor_s
        work = max(work, floor, prefill * model.per_prefill_token_s + pairs * model.per_prefill_pair_s)
    return work + decodes * model.per_decode_seq_s + context * model.per_context_token_s


def chunks(prompt_tokens: float, config: SchedulerConfig) -> list[tuple[float, float]]:
    """A lone prompt's steps, as (tokens, pairs)."""
    out, done = [], 0.0
    limit = config.long_prefill_threshold or config.max_num_batched_tokens
    most = min(limit, config.max_num_batched_tokens)
    while done < prompt_tokens:
        tokens = min(most, prompt_tokens - done)
        out.append((tokens, tokens * (done + 0.5 * (tokens + 1))))
        done += tokens
    return out


def sample_s(model: StepModel, config: SchedulerConfig, sample: StepSample) -> float:
    """What the model says of a sample."""
    if not sample.is_ttft:
        tokens = sample.prefill_tokens
        pairs = tokens * (sample.prefill_context + 0.5 * (tokens + 1)) if tokens else 0.0
        step = step_s(model, config, tokens, pairs, sample.decode_seqs, sample.context_tokens)
        return max(step, sample.decode_seqs * model.token_s)
    steps = (step_s(model, config, tokens, pairs, 0, 0) for tokens, pairs in chunks(sample.prefill_tokens, config))
    return model.overhead_s + model.request_s + model.token_s + sum(steps)


def fit(samples: Sequence[StepSample], config: SchedulerConfig) -> StepModel:
    """The model that lies closest to the samples, relatively: no coefficient is negative.

    ``config`` is the one that the samples were taken under.
    ``request_s`` cannot be told from ``overhead_s`` by these samples: see calibrate.refine.
    """
    if not any(sample.decode_seqs for sample in samples) or not any(sample.prefill_tokens for sample in samples):
        raise ValueError("samples of decoding and of prompts are needed")
    decode = [sample for sample in samples if not sample.prefill_tokens]
    model = _decode_only(decode)
    model = _prompts(model, [sample for sample in samples if sample.prefill_tokens], config)
    errors = [abs(sample_s(model, config, s) / s.seconds - 1.0) for s in samples]
    return model.model_copy(update={"residual": statistics.median(errors), "num_samples": len(samples)})


def _decode_only(samples: Sequence[StepSample]) -> StepModel:
    """fixed + s · sequences + c · context, or the serving thread: whichever the batch is bound by.

    Batches are taken as bound by the thread from the largest downwards, as long as that lowers the error: steps cannot
    grow faster than their batch, a queue can.
    """
    ordered = sorted(samples, key=lambda s: s.decode_seqs)
    best: tuple[float, StepModel] | None = None
    for bound in range(max(1, len({s.decode_seqs for s in ordered}) - 1)):
        steps, queue = ordered[: len(ordered) - bound], ordered[len(ordered) - bound :]
        rows = np.array([[1.0, s.decode_seqs, s.context_tokens] for s in steps])
        if len({s.decode_seqs for s in steps}) == 1:
            rows[:, 1] = 0.0
        fixed, seq, context = nnls(*_relative(rows, steps))
        token_s = min((s.seconds / s.decode_seqs for s in queue), default=0.0)
        model = StepModel(
            fixed_s=fixed, per_prefill_token_s=0.0, per_decode_seq_s=seq, per_context_token_s=context, token_s=token_s
        )
        error = sum(
            _weight(s)
            * (max(fixed + seq * s.decode_seqs + context * s.context_tokens, token_s * s.decode_seqs) / s.seconds - 1)
            ** 2
            for s in ordered
        )
        if best is None or error < 0.5 * best[0] - 1e-4:
            best = (error, model)
    assert best is not None  # noqa: S101 (the range is not empty)
    return best[1]


def _prompts(model: StepModel, samples: Sequence[StepSample], config: SchedulerConfig) -> StepModel:
    """The floors, ``k``, ``q`` and the overhead, with what decoding costs known.

    Which steps lie on a floor is not known beforehand: every border between them is tried, and the one whose model
    comes closest is kept. Beside floors, pairs can only be told from tokens by long prompts, and are only taken in if
    that halves the error.
    """
    plain = _best_borders(model, samples, config, has_pairs=False)
    if config.graph_tokens is not None and max(s.prefill_tokens for s in samples) < LONG_TOKENS:
        return plain
    pairs = _best_borders(model, samples, config, has_pairs=True)
    return pairs if _error(pairs, samples, config) < 0.5 * _error(plain, samples, config) else plain


def _best_borders(
    model: StepModel, samples: Sequence[StepSample], config: SchedulerConfig, *, has_pairs: bool
) -> StepModel:
    graph = config.graph_tokens
    sizes = sorted({tokens + s.decode_seqs for s in samples for tokens, _ in _steps_of(s, config)})
    small = [0.0] + [size for size in sizes if graph is not None and size <= graph]
    large = [0.0] + [size for size in sizes if graph is not None and size > graph]
    tried = [
        _with_borders(model, samples, config, small_border, large_border, has_pairs=has_pairs)
        for small_border in small
        for large_border in large
    ]
    return min(tried, key=lambda found: _error(found, samples, config))


def _error(model: StepModel, samples: Sequence[StepSample], config: SchedulerConfig) -> float:
    return float(sum(_weight(s) * (sample_s(model, config, s) / s.seconds - 1.0) ** 2 for s in samples))


def _with_borders(
    model: StepModel,
    samples: Sequence[StepSample],
    config: SchedulerConfig,
    small: float,
    large: float,
    *,
    has_pairs: bool,
) -> StepModel:
    """The fit in which steps of at most ``small`` tokens (``large``, where no graph fits) lie on their floor."""
    graph, rows, known = config.graph_tokens, [], []
    for s in samples:
        row = [0.0, 0.0, 0.0, 0.0, 1.0 if s.is_ttft else 0.0]
        base = s.decode_seqs * model.per_decode_seq_s + s.context_tokens * model.per_context_token_s
        base += model.token_s if s.is_ttft else 0.0
        for tokens, pairs in _steps_of(s, config):
            total = tokens + s.decode_seqs
            is_large = graph is not None and total > graph
            if total <= (large if is_large else small):
                row[3 if is_large else 2] += 1.0
            else:
                row[0] += tokens
                row[1] += pairs if has_pairs else 0.0
        rows.append(row)
        known.append(base)
    weights = np.array([_weight(s) ** 0.5 / s.seconds for s in samples])
    target = np.array([s.seconds for s in samples]) - np.array(known)
    k, q, small_floor, large_floor, overhead = nnls(np.array(rows) * weights[:, None], target * weights)
    return model.model_copy(
        update={
            "per_prefill_token_s": k,
            "per_prefill_pair_s": q,
            "prompt_floor_s": small_floor,
            "large_floor_s": max(small_floor, large_floor),
            "overhead_s": overhead,
        }
    )


def _steps_of(sample: StepSample, config: SchedulerConfig) -> list[tuple[float, float]]:
    tokens = sample.prefill_tokens
    if sample.is_ttft:
        return chunks(tokens, config)
    return [(tokens, tokens * (sample.prefill_context + 0.5 * (tokens + 1)))]


def _weight(sample: StepSample) -> float:
    """Beyond a few observations it is the model that is wrong, not the median."""
    return float(min(sample.n, 4) ** 0.5)


def _relative(rows: Floats, samples: Sequence[StepSample]) -> tuple[Floats, Floats]:
    weights = np.array([_weight(s) ** 0.5 / s.seconds for s in samples])
    return rows * weights[:, None], np.array([s.seconds for s in samples]) * weights


def nnls(matrix: Floats, target: Floats) -> list[float]:
    """Least squares without negative coefficients, for a handful of columns: the best of all subsets of columns whose
    own solution has none. Where the optimum has zeros, the other coefficients are the plain solution without them.
    """
    num = matrix.shape[1]
    scale = np.linalg.norm(matrix, axis=0)
    active = [at for at in range(num) if scale[at] > 0]
    scaled = matrix / np.where(scale > 0, scale, 1.0)
    best: tuple[float, Floats] = (float(target @ target), np.zeros(num))
    for mask in range(1, 1 << len(active)):
        chosen = [at for bit, at in enumerate(active) if mask >> bit & 1]
        solution, *_ = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)
        if (solution < 0).any():
            continue
        error = float(np.sum((scaled[:, chosen] @ solution - target) ** 2))
        if error < best[0] * (1 - 1e-9) - 1e-15:
            full = np.zeros(num)
            full[chosen] = solution
            best = (error, full)
    return [float(value) for value in best[1] / np.where(scale > 0, scale, 1.0)]
