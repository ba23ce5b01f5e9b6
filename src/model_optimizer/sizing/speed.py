"""Roofline estimates: how long a prefill and a decode step take at least, about, and what that means under load.

Floors use the sourced peaks and nothing else, so they may refuse: no implementation that makes one token a step is
faster. Estimates divide by efficiencies that carry their origin, and come as a range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from model_optimizer.records.model import ModelSpec
from model_optimizer.records.sizing import Parallelism, Span, SpeedEstimate, Term


class Device(NamedTuple):
    """What the arithmetic needs of a GPU (or CPU): base units, dense rates of the type that is computed in.

    For floors: ``peak_flops`` is the fastest rate that any kernel for the scheme could reach (``None``: not known, then
    arithmetic sets no floor), ``cache_bytes`` what the last cache may keep from one step to the next.
    """

    bandwidth_bytes_s: float
    flops: float
    link_bytes_s: float
    kv_read_bytes_per_element: float = 2.0
    peak_flops: float | None = None
    cache_bytes: float = 0.0


class Efficiency(NamedTuple):
    """Shares of the peak that engines reach, fixed cost of a step, and where these numbers come from.

    ``sequence_overhead_s``: what each sequence of a batch adds to a decode step on the host and in small kernels
    (scheduling, block tables, sampling, streaming its token). Without it large batches of small models look too fast.
    The first token: ``ttft_overhead_s`` for the request's way in and out, ``ttft_prefills`` prefill times until it is
    there (it waits for the step that is running and is itself cut into steps shared with decoding), ``queue_share`` of
    a prefill for every other user. ``ttft_spread`` is the range of TTFT, ``spread`` of all else.
    """

    bandwidth: float
    compute: float
    step_overhead_s: float
    layer_overhead_s: float
    allreduce_latency_s: float
    spread: float
    origin: str
    sequence_overhead_s: float = 0.0
    ttft_overhead_s: float = 0.0
    ttft_prefills: float = 1.0
    queue_share: float = 0.0
    ttft_spread: float = 0.0


class Load(NamedTuple):
    """Users at once who all send the same request."""

    concurrency: float
    prompt_tokens: float
    output_tokens: float

    @property
    def live_tokens(self) -> float:
        """Mean context of a request in the middle of its answer."""
        return self.prompt_tokens + self.output_tokens / 2


class Mix(NamedTuple):
    """Requests by class: (prompt tokens, answer tokens, share). The shares add up to one."""

    classes: tuple[tuple[float, float, float], ...]

    @property
    def prompt_tokens(self) -> float:
        """Mean prompt."""
        return sum(prompt * share for prompt, _, share in self.classes)

    @property
    def output_tokens(self) -> float:
        """Mean answer."""
        return sum(answer * share for _, answer, share in self.classes)

    @property
    def live_tokens(self) -> float:
        """Mean context of a request in the middle of its answer."""
        return self.prompt_tokens + self.output_tokens / 2

    def prompt_at(self, share: float) -> float:
        """The prompt length that this share of requests does not exceed."""
        seen = 0.0
        for prompt, _, part in sorted(self.classes):
            seen += part
            if seen >= share - 1e-9:
                return prompt
        return max(prompt for prompt, _, _ in self.classes)


ONE_GPU = Parallelism()
IDEAL = Efficiency(1.0, 1.0, 0.0, 0.0, 0.0, 0.0, "sourced peak")

# How far a request's TPOT lies above the mean, by share of requests, once there are neighbours enough to disturb it:
# from P99 against the mean of runs on an H200 (1.05 to 1.1 at 16 to 256 users), rounded up. A single user has none.
# Waiting for a first token is about exponential instead.
_TPOT_TAIL = ((0.5, 0.0), (0.9, 0.07), (0.95, 0.10), (0.99, 0.15), (1.0, 0.30))
_NEIGHBOURS = 8.0
_WAIT_CAP = 0.999  # "max" of a few thousand requests


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


def tpot_tail(share: float, users: float) -> float:
    """How many times the mean TPOT the request at that share has, with that many users."""
    excess = next(factor for edge, factor in _TPOT_TAIL if share <= edge)
    return 1.0 + excess * min(1.0, (max(1.0, users) - 1.0) / _NEIGHBOURS)


class Speed(NamedTuple):
    """One load's prediction as plain numbers; ``extra_s`` is what a prefill adds to other users' decode steps.

    ``queue_s`` is the mean wait for the prefills of others, part of ``ttft_s``.
    """

    ttft_s: float
    tpot_s: float
    request_rate_per_s: float
    step_s: float
    prefill_s: float
    extra_s: float
    queue_s: float = 0.0


class Replica:
    """The arithmetic of one replica with everything worked out that does not depend on the load.

    ``micro_batches``: parts into which a pipeline cuts the batch so that its stages work at the same time; 1 where they
    take turns (llama.cpp's layer split). ``weight_bytes`` are those of one GPU. A token passes the stages one after the
    other, so bytes, KV cache and arithmetic below are those of all stages, on one rank of each.
    """

    def __init__(
        self,
        model: ModelSpec,
        weight_bytes: Mapping[str, float],
        device: Device,
        how: Efficiency,
        *,
        kv_bytes_per_token: float,
        split: Parallelism = ONE_GPU,
        micro_batches: int = 1,
        active: float | None = None,
    ) -> None:
        self.model, self.device, self.how, self.split = model, device, how, split
        self.kv_bytes_per_token, self.micro_batches = kv_bytes_per_token * split.pipeline, micro_batches
        self.active = active_parameters(model) if active is None else active
        self.bandwidth = device.bandwidth_bytes_s * how.bandwidth
        self.rate = device.flops * how.compute * split.tensor
        self.overhead_s = how.step_overhead_s + model.num_layers * how.layer_overhead_s
        experts = weight_bytes.get("experts", 0.0)
        ends = {name: weight_bytes[name] for name in ("embeddings", "head") if name in weight_bytes}
        layers = sum(weight_bytes.values()) - experts - sum(ends.values())
        head = ends.get("head", ends.get("embeddings", 0.0))  # a tied head is the table used as a matrix
        self.expert_bytes = experts * split.pipeline
        self.dense_bytes = layers * split.pipeline + head

    def weights_read(self, tokens: float) -> float:
        """Bytes of weights that a step of ``tokens`` reads, on one rank: no embedding table, experts as touched."""
        return self.dense_bytes + self.expert_bytes * touched_share(self.model, tokens)

    def decode_step_s(self, batch: float, context: float) -> float:
        """Seconds of one decode step of ``batch`` sequences at ``context`` tokens each.

        Weights are read once a step, the KV cache once a sequence; each token costs 2 · active parameters FLOP. Two
        all-reduces a layer move 2 (n−1)/n · batch · hidden · 2 bytes over the link (ring). The host handles every
        sequence of the batch once a step. A token passes the stages of a pipeline one after the other.
        """
        part = batch if self.micro_batches == 1 else max(1.0, batch / self.micro_batches)
        moved = self.weights_read(part) + part * context * self.kv_bytes_per_token
        compute = part * 2 * self.active / self.rate
        return max(moved / self.bandwidth, compute) + self._messages_s(part) + self._overhead_s(batch)

    def binds(self, batch: float, context: float) -> str:
        """What a decode step waits for most: weights, KV cache, compute, link or overhead."""
        parts = {
            "weights": self.weights_read(batch) / self.bandwidth,
            "KV cache": batch * context * self.kv_bytes_per_token / self.bandwidth,
            "compute": batch * 2 * self.active / self.rate,
            "link": self._messages_s(batch),
            "overhead": self._overhead_s(batch),
        }
        return max(parts, key=lambda name: parts[name])

    def prefill_s(self, tokens: float) -> float:
        """Seconds to read a prompt, never faster than reading the weights once.

        FLOP: 2 · active parameters · tokens, plus causal attention's 2 · layers · heads · head_dim · tokens².
        """
        compute = self._flop(tokens) / self.rate
        read = self.weights_read(tokens) / self.bandwidth
        return max(compute, read) + self._messages_s(tokens) + self.overhead_s

    def tpot_floor_s(self) -> float:
        """Weights over peak bandwidth for a single user, less what a cache may keep: no engine is below it.

        One token a step is assumed; drafting several tokens a step (speculative decoding) is the way around it.
        """
        read = max(0.0, self.weights_read(1) - self.device.cache_bytes)
        return read / self.device.bandwidth_bytes_s

    def ttft_floor_s(self, tokens: float) -> float:
        """FLOP of a prompt over the peak of all GPUs, or the weights over the bandwidth, whichever is longer."""
        return max(self.prefill_floor_s(tokens), self.tpot_floor_s())

    def prefill_floor_s(self, tokens: float) -> float:
        """FLOP of a prompt over the peak of all GPUs; 0 where the peak is not known."""
        peak = self.device.peak_flops
        return self._flop(tokens) / (peak * self.split.num_gpus) if peak else 0.0

    def steady(self, mix: Mix) -> Steady:
        """The replica under requests of this mix."""
        return Steady(self, mix)

    def at(self, load: Load) -> Speed:
        """The steady state under one kind of request: see ``Steady.at``."""
        return self._alike(load).at(load.concurrency)

    def estimate(self, load: Load) -> SpeedEstimate:
        """``at`` as a record, with ranges and floors."""
        return self._alike(load).estimate(load.concurrency)

    def explain(self, load: Load) -> tuple[Term, ...]:
        """The arithmetic at this load, line by line."""
        return self._alike(load).explain(load.concurrency)

    def _alike(self, load: Load) -> Steady:
        return Steady(self, Mix(((load.prompt_tokens, load.output_tokens, 1.0),)))

    def _flop(self, tokens: float) -> float:
        spec = self.model
        attention = 2 * spec.num_layers * spec.num_attention_heads * spec.head_dim * tokens**2
        return 2 * self.active * tokens + attention

    def _overhead_s(self, batch: float) -> float:
        return self.overhead_s + batch * self.how.sequence_overhead_s

    def _messages_s(self, tokens: float) -> float:
        """All-reduces of tensor parallelism, and hand-overs between stages."""
        if self.split.num_gpus == 1:
            return 0.0
        ranks, stages = self.split.tensor, self.split.pipeline
        row = tokens * self.model.hidden_size * 2
        latency, link = self.how.allreduce_latency_s, self.device.link_bytes_s
        reduces = 2 * self.model.num_layers * (2 * (ranks - 1) / ranks * row / link + latency) if ranks > 1 else 0.0
        return reduces + (stages - 1) * (row / link + latency)


class Steady:
    """A replica under a mix of requests, in the steady state of users who each wait for their answer."""

    def __init__(self, replica: Replica, mix: Mix) -> None:
        self.replica, self.mix = replica, mix
        self.answers = max(1.0, mix.output_tokens)
        self.context = mix.live_tokens
        how = replica.how
        self._prefills = [(prompt, replica.prefill_s(prompt), share) for prompt, _, share in mix.classes]
        self.prefill_s = sum(seconds * share for _, seconds, share in self._prefills)
        self._by_share: dict[float, float] = {}
        self.extra_s = 0.0
        for prompt, seconds, share in self._prefills:
            weights = replica.weights_read(prompt) / replica.bandwidth
            self.extra_s += share * max(0.2 * seconds, seconds - weights - how.step_overhead_s)

    def at(self, users: float) -> Speed:
        """With c users, t_p a prefill, t_d a decode step of c sequences and t_x what a prefill adds to a step of others
        (it shares the reading of the weights): TPOT = t_d + (c − 1) · t_x / output_tokens. TTFT = overhead +
        ``ttft_prefills`` · t_p + t_d + (c − 1) · ``queue_share`` · t_p. Requests a second = c / (TTFT + output_tokens ·
        TPOT).
        """
        users, how = max(1.0, users), self.replica.how
        step = self.replica.decode_step_s(users, self.context)
        tpot = step + (users - 1) * self.extra_s / self.answers
        queue = (users - 1) * how.queue_share * self.prefill_s
        ttft = how.ttft_overhead_s + how.ttft_prefills * self.prefill_s + step + queue
        rate = users / (ttft + self.answers * tpot)
        return Speed(ttft, tpot, rate, step, self.prefill_s, self.extra_s, queue)

    def ttft_at(self, speed: Speed, share: float) -> float:
        """The TTFT that this share of requests does not exceed: the prompt of that share, and an exponential wait."""
        how, prefill = self.replica.how, self._prefill_at(share)
        wait = speed.queue_s * -math.log(1.0 - min(share, _WAIT_CAP))
        return how.ttft_overhead_s + how.ttft_prefills * prefill + speed.step_s + wait

    def _prefill_at(self, share: float) -> float:
        if share not in self._by_share:
            prompt = self.mix.prompt_at(share)
            self._by_share[share] = next(seconds for length, seconds, _ in self._prefills if length == prompt)
        return self._by_share[share]

    def e2e_at(self, speed: Speed, users: float, share: float) -> float:
        """The end-to-end time that this share of requests does not exceed: the class of that share, at its own TPOT."""
        how = self.replica.how
        wait = speed.queue_s * -math.log(1.0 - min(share, _WAIT_CAP)) + how.ttft_overhead_s + speed.step_s
        tpot = speed.tpot_s * tpot_tail(share, users)
        spans = sorted(
            (wait + how.ttft_prefills * seconds + answer * tpot, part)
            for (_, seconds, part), (_, answer, _) in zip(self._prefills, self.mix.classes, strict=True)
        )
        seen = 0.0
        for span, part in spans:
            seen += part
            if seen >= share - 1e-9:
                return span
        return spans[-1][0]

    def itl_at(self, speed: Speed, users: float, share: float) -> float:
        """The gap between tokens that this share does not exceed: where more steps than that carry somebody's prefill,
        a step with a prefill in it.
        """
        carrying = min(1.0, (max(1.0, users) - 1) / self.answers)
        return speed.step_s + self.extra_s if carrying > 1.0 - share else speed.tpot_s * tpot_tail(share, users)

    def estimate(self, users: float) -> SpeedEstimate:
        """``at`` as a record: ranges, floors, what binds."""
        speed, how = self.at(users), self.replica.how
        wide = how.ttft_spread or how.spread
        return SpeedEstimate(
            concurrency=users,
            ttft_s=_span(speed.ttft_s, wide),
            tpot_s=_span(speed.tpot_s, how.spread),
            output_tokens_per_s=_span(speed.request_rate_per_s * self.answers, how.spread),
            request_rate_per_s=_span(speed.request_rate_per_s, how.spread),
            tokens_per_s_per_user=_span(1 / speed.tpot_s, how.spread),
            tpot_floor_s=self.replica.tpot_floor_s(),
            ttft_floor_s=self.replica.ttft_floor_s(self.mix.prompt_tokens),
            binds=self.replica.binds(max(1.0, users), self.context),
        )

    def explain(self, users: float) -> tuple[Term, ...]:
        """The arithmetic at this many users, line by line."""
        replica, speed = self.replica, self.at(users)
        how, device, read = replica.how, replica.device, replica.weights_read(users)
        gpus = replica.split.num_gpus
        each = "" if gpus == 1 else ", one rank"
        load = f"{users:g} users, {self.context:.0f} tokens each"
        kv = users * self.context * replica.kv_bytes_per_token
        first = f"{how.ttft_overhead_s * 1e3:g} ms + {how.ttft_prefills:g} · prefill + step + waiting"
        rate = f"{users:g} ÷ (TTFT + {self.answers:.0f} · TPOT)"
        peak = f"weights ÷ {device.bandwidth_bytes_s / 1e9:.0f} GB/s"
        rows = (
            ("active parameters", replica.active, "", "matrices a token meets", "headers"),
            ("weights read a step", read, "B", f"all but the embedding table, experts as touched{each}", "arithmetic"),
            ("KV cache read a step", kv, "B", load + each, "arithmetic"),
            ("memory bandwidth", replica.bandwidth, "B/s", f"{how.bandwidth:.2f} of the peak", how.origin),
            (
                "matrix rate",
                replica.rate,
                "FLOP/s",
                f"{how.compute:.2f} of the peak, {replica.split.tensor} rank{'s' if gpus > 1 else ''}",
                how.origin,
            ),
            ("step overhead", replica._overhead_s(users), "s", "the step, its layers, its sequences", how.origin),
            ("messages a step", replica._messages_s(users), "s", "between GPUs", how.origin),
            ("decode step", speed.step_s, "s", "max(bytes ÷ bandwidth, FLOP ÷ rate) + messages + overhead", load),
            ("prefill", speed.prefill_s, "s", f"{self.mix.prompt_tokens:.0f} tokens in the mean", "arithmetic"),
            ("prefill inside decode", speed.extra_s, "s", "what a prompt adds to the others' steps", "arithmetic"),
            ("TPOT", speed.tpot_s, "s", f"step + {users - 1:g} · prefill inside ÷ {self.answers:.0f} tokens", load),
            ("waiting", speed.queue_s, "s", f"{users - 1:g} · {how.queue_share:g} · prefill of others", how.origin),
            ("TTFT", speed.ttft_s, "s", first, how.origin),
            ("requests a second", speed.request_rate_per_s, "1/s", rate, load),
            ("TPOT floor", replica.tpot_floor_s(), "s", peak, "sourced peak"),
        )
        return tuple(Term(name=n, value=v, unit=u, formula=f, origin=o) for n, v, u, f, o in rows)


def _span(value: float, spread: float) -> Span:
    return Span(low=value / (1 + spread), value=value, high=value * (1 + spread))
