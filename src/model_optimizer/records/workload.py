"""What will be asked of the service (traffic) and what it must keep (SLO)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from model_optimizer.records.base import Record
from model_optimizer.units import Seconds, Share, parse_bytes, parse_per_second, parse_seconds, parse_share

LatencyMetric = Literal["ttft", "tpot", "itl", "e2e"]
Metric = Literal["ttft", "tpot", "itl", "e2e", "output_tokens_per_s", "request_rate", "error_rate", "peak_memory"]
Statistic = Literal["mean", "p50", "p90", "p95", "p99", "max", "value"]
Objective = Literal["goodput", "latency", "memory", "quality", "cost"]

LATENCY_METRICS: tuple[LatencyMetric, ...] = ("ttft", "tpot", "itl", "e2e")
AT_LEAST: frozenset[str] = frozenset({"output_tokens_per_s", "request_rate"})


class LengthClass(Record):
    """One class of requests: this many prompt tokens, this share of the traffic, answers this long."""

    prompt_tokens: Annotated[int, Field(gt=0)]
    weight: Annotated[float, Field(gt=0)]
    output_tokens: Annotated[int, Field(gt=0)] | None = None


class Load(Record):
    """One level of load: ``concurrency`` users who each wait for their answer, or Poisson arrivals."""

    concurrency: Annotated[int, Field(gt=0)] | None = None
    rate_per_s: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """``8`` or ``"8"`` is a concurrency, ``"4/s"`` a rate."""
        if isinstance(value, int):
            return {"concurrency": value}
        if isinstance(value, str):
            text = value.strip()
            return {"concurrency": int(text)} if text.isdigit() else {"rate_per_s": parse_per_second(text)}
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise ValueError("a load is either a concurrency (8) or an arrival rate (4/s)")
        return self

    def __str__(self) -> str:
        """``c=8`` or ``4/s``."""
        return f"c={self.concurrency}" if self.concurrency is not None else f"{self.rate_per_s:g}/s"


class TrafficProfile(Record):
    """Weighted length classes under one or several loads, each measured in turn."""

    id: str = "custom"
    description: str = ""
    lengths: Annotated[tuple[LengthClass, ...], Field(min_length=1)]
    output_tokens: Annotated[int, Field(gt=0)] = 128
    loads: Annotated[tuple[Load, ...], Field(min_length=1)] = (Load(concurrency=1),)
    seconds_per_load: Seconds = 60.0
    min_requests_per_load: Annotated[int, Field(gt=0)] = 10
    max_requests_per_load: Annotated[int, Field(gt=0)] = 1000
    seed: int = 0

    @model_validator(mode="before")
    @classmethod
    def _lengths_from_mapping(cls, value: Any) -> Any:
        """``prompt_tokens: {128: 0.80, 512: 0.15}`` is the short form of ``lengths``."""
        if isinstance(value, dict) and "prompt_tokens" in value:
            value = dict(value)
            mix = value.pop("prompt_tokens")
            if not isinstance(mix, dict):
                mix = {mix: 1.0}
            value["lengths"] = [{"prompt_tokens": int(k), "weight": parse_share(v)} for k, v in mix.items()]
        return value

    @property
    def longest_sequence(self) -> int:
        """Prompt plus answer tokens of the longest class."""
        return max(c.prompt_tokens + (c.output_tokens or self.output_tokens) for c in self.lengths)

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean prompt tokens of a request."""
        total = sum(c.weight for c in self.lengths)
        return sum(c.prompt_tokens * c.weight for c in self.lengths) / total

    @property
    def max_concurrency(self) -> int:
        """The most simultaneous users any closed-loop step asks for (1 if all loads are rates)."""
        return max((load.concurrency or 1) for load in self.loads)


def _parse_limit(metric: str, value: Any) -> float:
    if isinstance(value, int | float) and (metric in LATENCY_METRICS or metric == "peak_memory"):
        raise ValueError(f"{value!r}: no unit; write for example {'150 ms' if metric != 'peak_memory' else '24 GiB'}")
    if metric in LATENCY_METRICS:
        return parse_seconds(value)
    if metric == "error_rate":
        return parse_share(value)
    if metric == "peak_memory":
        return float(parse_bytes(value))
    return parse_per_second(value)


class Limit(Record):
    """One promise: this statistic of this metric stays below (or, for throughput, above) this value, in base units."""

    metric: Metric
    statistic: Statistic = "value"
    limit: float

    @property
    def name(self) -> str:
        """``ttft_p99``: as written in a request."""
        return self.metric if self.statistic == "value" else f"{self.metric}_{self.statistic}"

    @property
    def at_least(self) -> bool:
        """True where more is better (throughput)."""
        return self.metric in AT_LEAST


class SLO(Record):
    """The limits a candidate must keep, all of them, at ``at`` (default: the lightest load of the traffic)."""

    limits: tuple[Limit, ...] = ()
    at: Load | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_mapping(cls, value: Any) -> Any:
        """``{ttft_p99: 150 ms, error_rate: 0.1 %, at: 8}`` → limits."""
        if not isinstance(value, dict) or "limits" in value:
            return value
        limits = []
        for key, raw in value.items():
            if key == "at":
                continue
            if key in ("tokens_per_s", "throughput", "tok_s"):
                raise ValueError(
                    f"{key} is ambiguous: for one user's speed limit the time per output token (tpot_p95: 25 ms is "
                    "40 tokens/s a user); for the whole service write output_tokens_per_s"
                )
            metric, _, statistic = str(key).rpartition("_")
            if statistic not in ("mean", "p50", "p90", "p95", "p99", "max") or metric not in LATENCY_METRICS:
                metric, statistic = str(key), "value"
            if metric in LATENCY_METRICS and statistic == "value":
                raise ValueError(f"{key}: say which statistic, for example {key}_p99")
            known = (*LATENCY_METRICS, "output_tokens_per_s", "request_rate", "error_rate", "peak_memory")
            if metric not in known:
                raise ValueError(
                    f"unknown SLO {key!r}; known: ttft_p99 (also tpot, itl, e2e; mean, p50, p90, p95, p99, "
                    "max), output_tokens_per_s, request_rate, error_rate, peak_memory, at"
                )
            limits.append({"metric": metric, "statistic": statistic, "limit": _parse_limit(metric, raw)})
        return {"limits": limits, "at": value.get("at")}

    @property
    def latency_limits(self) -> tuple[Limit, ...]:
        """Those that one request can keep or miss: they define goodput."""
        return tuple(limit for limit in self.limits if limit.metric in LATENCY_METRICS)


class AccuracyLimits(Record):
    """How far a candidate may move from the reference. Defaults and their reasons: docs/accuracy.md.

    ``max_perplexity_rise``: share above the reference's perplexity. ``min_top1_agreement``: share of positions with
    the same most likely token. ``max_kl``: mean KL divergence in nats a token. ``max_degenerate``: share of
    generations that repeat themselves, are empty, or stop wrongly, beyond what the reference itself does.
    """

    max_perplexity_rise: Share = 0.05
    min_top1_agreement: Share = 0.85
    max_kl: float = 0.10
    max_degenerate: Share = 0.10
    eval_tokens: Annotated[int, Field(ge=256)] = 4096
    num_prompts: Annotated[int, Field(ge=1)] = 12
