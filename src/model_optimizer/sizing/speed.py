"""Roofline estimates: how long a prefill and a decode step take at least, about, and what that means under load.

Floors use the sourced peak and nothing else, so they may refuse: no implementation is faster. Estimates divide by
efficiencies that carry their origin, and come as a range.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """Shares of the peak that engines reach, fixed cost of a step, and where these numbers come from.

    ``sequence_overhead_s``: what each sequence of a batch adds to a decode step on the host and in small kernels
    (scheduling, block tables, sampling, streaming its token). Without it large batches of small models look too fast.
    """

    bandwidth: float
    compute: float
    step_overhead_s: float
    layer_overhead_s: float
    allreduce_latency_s: float
    spread: float
    origin: str
    sequence_overhead_s: float = 0.0


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


class Speed(NamedTuple):
    """One load's prediction as plain numbers; ``extra_s`` is what a prefill adds to other users' decode steps."""

    ttft_s: float
    tpot_s: float
    request_rate_per_s: float
    step_s: float
    prefill_s: float
    extra_s: float


class Replica:
    """The arithmetic of one replica with everything worked out that does not depend on the load."""

    def __init__(
        self,
        model: ModelSpec,
        weight_bytes: Mapping[str, float],
        device: Device,
        how: Efficiency,
        *,
        kv_bytes_per_token: float,
        split: Parallelism = ONE_GPU,
    ) -> None:
        self.model, self.device, self.how, self.split = model, device, how, split
        self.kv_bytes_per_token = kv_bytes_per_token
        self.active = active_parameters(model)
        self.bandwidth = device.bandwidth_bytes_s * how.bandwidth
        self.rate = device.flops * how.compute * split.num_gpus
        self.overhead_s = how.step_overhead_s + model.num_layers * how.layer_overhead_s
        self.expert_bytes = weight_bytes.get("experts", 0.0)
        table = weight_bytes.get("embeddings", 0.0) if "head" in weight_bytes else 0.0
        self.dense_bytes = sum(weight_bytes.values()) - self.expert_bytes - table

    def weights_read(self, tokens: float) -> float:
        """Bytes of weights that a step of ``tokens`` reads on one GPU: no embedding table, experts as touched."""
        return self.dense_bytes + self.expert_bytes * touched_share(self.model, tokens)

    def decode_step_s(self, batch: float, context: float) -> float:
        """Seconds of one decode step of ``batch`` sequences at ``context`` tokens each.

        Weights are read once a step, the KV cache once a sequence; each token costs 2 · active parameters FLOP. Two
        all-reduces a layer move 2 (n−1)/n · batch · hidden · 2 bytes over the link (ring). The host handles every
        sequence of the batch once a step.
        """
        moved = self.weights_read(batch) + batch * context * self.kv_bytes_per_token
        compute = batch * 2 * self.active / self.rate
        return max(moved / self.bandwidth, compute) + self._allreduce_s(batch) + self._overhead_s(batch)

    def binds(self, batch: float, context: float) -> str:
        """What a decode step waits for most: weights, KV cache, compute, link or overhead."""
        parts = {
            "weights": self.weights_read(batch) / self.bandwidth,
            "KV cache": batch * context * self.kv_bytes_per_token / self.bandwidth,
            "compute": batch * 2 * self.active / self.rate,
            "link": self._allreduce_s(batch),
            "overhead": self._overhead_s(batch),
        }
        return max(parts, key=lambda name: parts[name])

    def prefill_s(self, tokens: float) -> float:
        """Seconds to read a prompt, never faster than reading the weights once.

        FLOP: 2 · active parameters · tokens, plus causal attention's 2 · layers · heads · head_dim · tokens².
        """
        spec = self.model
        attention = 2 * spec.num_layers * spec.num_attention_heads * spec.head_dim * tokens**2
        compute = (2 * self.active * tokens + attention) / self.rate
        return max(compute, self.weights_read(tokens) / self.bandwidth) + self._allreduce_s(tokens) + self.overhead_s

    def at(self, load: Load) -> Speed:
        """The steady state of ``load.concurrency`` users who each wait for their answer.

        A request takes its prefill and ``output_tokens`` decode steps; while it decodes, the prefills of the others
        take their turns. With c users, t_p a prefill, t_d a decode step of c sequences and t_x what a prefill adds to a
        step (it shares the reading of the weights): TPOT = t_d + (c − 1) · t_x / output_tokens; TTFT = t_p + t_d + half
        of the prefills due during one step; requests a second = c / (TTFT + output_tokens · TPOT).
        """
        users, answers = max(1.0, load.concurrency), max(1.0, load.output_tokens)
        step = self.decode_step_s(users, load.live_tokens)
        prefill = self.prefill_s(load.prompt_tokens)
        weights = self.weights_read(load.prompt_tokens) / self.bandwidth
        extra = max(0.2 * prefill, prefill - weights - self.how.step_overhead_s)
        tpot = step + (users - 1) * extra / answers
        ttft = prefill + step + (users - 1) * prefill / answers * 0.5
        return Speed(ttft, tpot, users / (ttft + answers * tpot), step, prefill, extra)

    def estimate(self, load: Load) -> SpeedEstimate:
        """``at`` as a record: ranges, floors, what binds, and the arithmetic line by line."""
        speed = self.at(load)
        ideal = Replica(
            self.model,
            {"all": self.dense_bytes, "experts": self.expert_bytes},
            self.device,
            IDEAL,
            kv_bytes_per_token=self.kv_bytes_per_token,
            split=self.split,
        )
        return SpeedEstimate(
            concurrency=load.concurrency,
            ttft_s=self._span(speed.ttft_s),
            tpot_s=self._span(speed.tpot_s),
            output_tokens_per_s=self._span(speed.request_rate_per_s * load.output_tokens),
            request_rate_per_s=self._span(speed.request_rate_per_s),
            tokens_per_s_per_user=self._span(1 / speed.tpot_s),
            tpot_floor_s=ideal.decode_step_s(1, load.live_tokens),
            ttft_floor_s=ideal.prefill_s(load.prompt_tokens),
            binds=self.binds(max(1.0, load.concurrency), load.live_tokens),
        )

    def _overhead_s(self, batch: float) -> float:
        return self.overhead_s + batch * self.how.sequence_overhead_s

    def _allreduce_s(self, tokens: float) -> float:
        ranks = self.split.tensor
        if ranks == 1:
            return 0.0
        moved = 2 * (ranks - 1) / ranks * tokens * self.model.hidden_size * 2
        return 2 * self.model.num_layers * (moved / self.device.link_bytes_s + self.how.allreduce_latency_s)

    def _span(self, value: float) -> Span:
        spread = 1 + self.how.spread
        return Span(low=value / spread, value=value, high=value * spread)

    def explain(self, load: Load) -> tuple[Term, ...]:
        """The arithmetic at this load, line by line."""
        how, device, read, speed = self.how, self.device, self.weights_read(load.concurrency), self.at(load)
        bandwidth = f"{how.bandwidth:.2f} of {device.bandwidth_bytes_s:.4g}"
        users = f"{load.concurrency:g} sequences of {load.live_tokens:.0f} tokens"
        rows = (
            ("active parameters", self.active, "", "matrices a token meets", "headers"),
            ("weights read a step", read, "B", "all but the embedding table, experts as touched", "arithmetic"),
            ("memory bandwidth", self.bandwidth, "B/s", bandwidth, how.origin),
            ("matrix rate", self.rate, "FLOP/s", f"{how.compute:.2f} of {device.flops:.4g} a GPU", how.origin),
            ("decode step", speed.step_s, "s", users, "arithmetic"),
            ("prefill", speed.prefill_s, "s", f"{load.prompt_tokens:.0f} tokens", "arithmetic"),
            ("prefill inside decode steps", speed.extra_s, "s", "what a chunk adds to a step", "arithmetic"),
        )  # fmt: skip
        return tuple(Term(name=n, value=v, unit=u, formula=f, origin=o) for n, v, u, f, o in rows)
