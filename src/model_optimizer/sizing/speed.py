"""Roofline estimates: how long a prefill and a decode step take at least, about, and what that means under load.

Floors use the sourced peak and nothing else, so they may refuse: no implementation is faster. Estimates divide by
efficiencies that carry their origin, and come as a range.
"""

from __future__ import annotations

from typing import NamedTuple

from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import Parallelism, Span, SpeedEstimate, Term


class Device(NamedTuple):
    """What the arithmetic needs of a GPU (or CPU): base units, dense rates of the type that is computed in."""

    bandwidth_bytes_s: float
    flops: float
    link_bytes_s: float
    kv_read_bytes_per_element: float = 2.0


class Efficiency(NamedTuple):
    """Shares of the peak that engines reach, fixed cost of a step, and where these numbers come from."""

    bandwidth: float
    compute: float
    step_overhead_s: float
    layer_overhead_s: float
    allreduce_latency_s: float
    spread: float
    origin: str


class Load(NamedTuple):
    """The traffic as the arithmetic sees it: users at once, mean tokens of a prompt and of an answer."""

    concurrency: float
    prompt_tokens: float
    output_tokens: float

    @property
    def live_tokens(self) -> float:
        """Mean context of a request in the middle of its answer."""
        return self.prompt_tokens + self.output_tokens / 2


ONE_GPU = Parallelism()
IDEAL = Efficiency(1.0, 1.0, 0.0, 0.0, 0.0, 0.0, "sourced peak")


def active_parameters(model: ModelSpec) -> float:
    """Parameters a token is multiplied with: all but the embedding table (looked up) and the experts not chosen.

    A tied head is the embedding table used as a matrix, so it counts once.
    """
    by_name = {item.name: float(item.parameters) for item in model.weight_classes}
    embeddings = by_name.pop("embeddings", 0.0)
    if "head" not in by_name:
        by_name["head"] = embeddings
    if model.moe is not None and "experts" in by_name:
        by_name["experts"] *= model.moe.experts_per_token / model.moe.num_experts
    return sum(by_name.values())


def touched_share(model: ModelSpec, tokens: float) -> float:
    """Share of the experts that a step of ``tokens`` reads: 1 − (1 − k/n)^tokens for k of n experts a token."""
    if model.moe is None:
        return 1.0
    return float(1.0 - (1.0 - model.moe.experts_per_token / model.moe.num_experts) ** max(1.0, tokens))


def step_bytes(model: ModelSpec, weight_bytes: dict[str, float], tokens: float) -> float:
    """Bytes of weights that one step reads on one GPU: everything but the embedding table (unless tied) once."""
    total = 0.0
    for name, value in weight_bytes.items():
        if name == "embeddings" and "head" in weight_bytes:
            continue
        total += value * (touched_share(model, tokens) if name == "experts" else 1.0)
    return total


def decode_step_s(
    model: ModelSpec,
    weight_bytes: dict[str, float],
    device: Device,
    split: Parallelism,
    how: Efficiency,
    *,
    batch: float,
    context: float,
    kv_bytes_per_token: float,
) -> tuple[float, str]:
    """Seconds of one decode step of ``batch`` sequences at ``context`` tokens each, and what binds it.

    Weights are read once a step, the KV cache once a sequence; each token costs 2 · active parameters FLOP. Two
    all-reduces a layer move 2 (n−1)/n · batch · hidden · 2 bytes over the link (ring).
    """
    weights = step_bytes(model, weight_bytes, batch) / (device.bandwidth_bytes_s * how.bandwidth)
    kv = batch * context * kv_bytes_per_token / (device.bandwidth_bytes_s * how.bandwidth)
    compute = batch * 2 * active_parameters(model) / split.num_gpus / (device.flops * how.compute)
    link = _allreduce_s(model, batch, device, split, how)
    overhead = how.step_overhead_s + model.num_layers * how.layer_overhead_s
    parts = {"weights": weights, "KV cache": kv, "compute": compute, "link": link, "overhead": overhead}
    return max(weights + kv, compute) + link + overhead, max(parts, key=lambda name: parts[name])


def prefill_s(
    model: ModelSpec,
    weight_bytes: dict[str, float],
    device: Device,
    split: Parallelism,
    how: Efficiency,
    *,
    tokens: float,
) -> float:
    """Seconds to read a prompt, never faster than reading the weights once.

    FLOP: 2 · active parameters · tokens, plus causal attention's 2 · layers · heads · head_dim · tokens².
    """
    attention = 2 * model.num_layers * model.num_attention_heads * model.head_dim * tokens**2
    flop = 2 * active_parameters(model) * tokens + attention
    compute = flop / split.num_gpus / (device.flops * how.compute)
    weights = step_bytes(model, weight_bytes, tokens) / (device.bandwidth_bytes_s * how.bandwidth)
    overhead = how.step_overhead_s + model.num_layers * how.layer_overhead_s
    return max(compute, weights) + _allreduce_s(model, tokens, device, split, how) + overhead


def estimate(
    model: ModelSpec,
    weight_bytes: dict[str, float],
    device: Device,
    load: Load,
    how: Efficiency,
    *,
    kv_bytes_per_token: float,
    split: Parallelism = ONE_GPU,
) -> SpeedEstimate:
    """Speed of one replica in the steady state of ``load.concurrency`` users who each wait for their answer.

    A request occupies a slot for its prefill and ``output_tokens`` decode steps; while it decodes, the prefills of the
    other users take their turns. With c users, t_p a prefill and t_d a decode step of c sequences:
    TPOT = t_d + (c − 1) · t_p / output_tokens; TTFT = t_p · (1 + half of the prefills that are due in the time of one
    step) + t_d; requests a second = c / (TTFT + output_tokens · TPOT).
    """
    context = load.live_tokens
    users = max(1.0, load.concurrency)
    step, binds = decode_step_s(
        model, weight_bytes, device, split, how, batch=users, context=context, kv_bytes_per_token=kv_bytes_per_token
    )
    prefill = prefill_s(model, weight_bytes, device, split, how, tokens=load.prompt_tokens)
    # Prefills are chunked into decode steps, so they cost compute on top of the weights that the step reads anyway.
    weights = step_bytes(model, weight_bytes, load.prompt_tokens) / (device.bandwidth_bytes_s * how.bandwidth)
    extra = max(0.2 * prefill, prefill - weights - how.step_overhead_s)
    tpot = step + (users - 1) * extra / max(1.0, load.output_tokens)
    waiting = (users - 1) * prefill / max(1.0, load.output_tokens) * 0.5
    ttft = prefill + step + waiting
    rate = users / (ttft + load.output_tokens * tpot)
    floor, _ = decode_step_s(
        model, weight_bytes, device, split, IDEAL, batch=1, context=context, kv_bytes_per_token=kv_bytes_per_token
    )
    return SpeedEstimate(
        concurrency=load.concurrency,
        ttft_s=_span(ttft, how),
        tpot_s=_span(tpot, how),
        output_tokens_per_s=_span(rate * load.output_tokens, how),
        request_rate_per_s=_span(rate, how),
        tokens_per_s_per_user=_span(1 / tpot, how),
        tpot_floor_s=floor,
        ttft_floor_s=prefill_s(model, weight_bytes, device, split, IDEAL, tokens=load.prompt_tokens),
        binds=binds,
        terms=_terms(model, weight_bytes, device, load, how, step=step, prefill=prefill, extra=extra),
    )


def _allreduce_s(model: ModelSpec, tokens: float, device: Device, split: Parallelism, how: Efficiency) -> float:
    if split.tensor == 1:
        return 0.0
    moved = 2 * (split.tensor - 1) / split.tensor * tokens * model.hidden_size * 2
    return 2 * model.num_layers * (moved / device.link_bytes_s + how.allreduce_latency_s)


def _span(value: float, how: Efficiency) -> Span:
    return Span(low=value / (1 + how.spread), value=value, high=value * (1 + how.spread))


def _terms(
    model: ModelSpec,
    weight_bytes: dict[str, float],
    device: Device,
    load: Load,
    how: Efficiency,
    *,
    step: float,
    prefill: float,
    extra: float,
) -> tuple[Term, ...]:
    read = step_bytes(model, weight_bytes, load.concurrency)
    bandwidth, rate = device.bandwidth_bytes_s * how.bandwidth, device.flops * how.compute
    rows = (
        ("active parameters", active_parameters(model), "", "matrices a token meets", "headers"),
        ("weights read a step", read, "B", "all but the embedding table, experts as touched", "arithmetic"),
        ("memory bandwidth", bandwidth, "B/s", f"{how.bandwidth:.2f} of {device.bandwidth_bytes_s:.4g}", how.origin),
        ("matrix rate", rate, "FLOP/s", f"{how.compute:.2f} of {device.flops:.4g}", how.origin),
        ("decode step", step, "s", f"{load.concurrency:g} sequences of {load.live_tokens:.0f} tokens", "arithmetic"),
        ("prefill", prefill, "s", f"{load.prompt_tokens:.0f} tokens", "arithmetic"),
        ("prefill inside decode steps", extra, "s", "what a chunk adds to a step", "arithmetic"),
    )
    return tuple(Term(name=n, value=v, unit=u, formula=f, origin=o) for n, v, u, f, o in rows)
