"""Requests of one load level → its result. Which requests and which window: loadgen/drive.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from model_optimizer.metrics.goodput import with_goodput
from model_optimizer.metrics.requests import e2e_s, itl_s, output_tokens, prompt_tokens, tpot_s, ttft_s
from model_optimizer.metrics.samples import distribution
from model_optimizer.records.measurement import ClientHealth, LoadResult, RequestTrace
from model_optimizer.records.workload import SLO, Load
from model_optimizer.units import format_share

FEW_FOR_P99 = 100
"""Below this many requests, P99 lies between the two slowest ones."""

CACHED_IS_SUSPECT = 0.02
"""A larger share of prompt tokens from a prefix cache is worth a note: the prompts share nothing but a chat template.
"""


NEGLIGIBLE_LAG = 0.05
"""A client that is late by less than this share of the median TTFT does not change what a reader would conclude."""

MAX_CLIENT_CPU_SHARE = 0.7


class Served(NamedTuple):
    """What the server delivered inside a window, whoever asked and whenever."""

    requests: int
    output_tokens: float
    prompt_tokens: int


class Window(NamedTuple):
    """The steady window: its bounds on the traces' clock, and what led to it."""

    start_s: float
    end_s: float
    warmup_requests: int = 0
    warmup_stable: bool = True

    @property
    def length_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


def served(traces: Iterable[RequestTrace], window: Window) -> Served:
    """What successful requests got inside ``window``, also those that began before it or ended after it.

    Output tokens count when their chunk arrives (a chunk holds output tokens / chunks), the prompt when its first
    token arrives, the request when its last one does. So no request is cut off at the edges, and none is counted
    whole for a part.
    """
    requests, tokens, prompts = 0, 0.0, 0
    for trace in traces:
        if trace.error is not None or not trace.chunk_s:
            continue
        inside = sum(window.start_s < at <= window.end_s for at in trace.chunk_s)
        tokens += output_tokens(trace) * inside / len(trace.chunk_s)
        prompts += prompt_tokens(trace) if window.start_s < trace.chunk_s[0] <= window.end_s else 0
        requests += window.start_s < trace.chunk_s[-1] <= window.end_s
    return Served(requests, tokens, prompts)


def summarize(
    load: Load,
    window: Window,
    counted: Sequence[RequestTrace],
    everything: Iterable[RequestTrace],
    *,
    slo: SLO,
    client: ClientHealth,
    cached_prompt_share: float | None = None,
    notes: Sequence[str] = (),
) -> LoadResult:
    """The result of one load.

    Latencies, errors and goodput come from ``counted``, the requests scheduled inside the window; rates from what
    arrived inside the window of ``everything``, the counted ones included. ``cached_prompt_share`` is used where the
    server's usage does not say it.
    """
    good = [trace for trace in counted if trace.error is None]
    errors = Counter(error_kind(trace.error) for trace in counted if trace.error is not None)
    rates, length_s = served(everything, window), window.length_s
    has_usage = all(trace.output_tokens is not None for trace in good)
    share = _cached_share(good)
    result = LoadResult(
        load=load,
        window_s=length_s,
        num_requests=len(counted),
        num_errors=len(counted) - len(good),
        errors=dict(errors),
        ttft_s=distribution(_values(ttft_s, good)),
        tpot_s=distribution(_values(tpot_s, good)),
        itl_s=distribution([gap for trace in good for gap in itl_s(trace)]),
        e2e_s=distribution(_values(e2e_s, good)),
        output_tokens_per_s=rates.output_tokens / length_s if length_s else 0.0,
        input_tokens_per_s=rates.prompt_tokens / length_s if length_s else 0.0,
        request_rate_per_s=rates.requests / length_s if length_s else 0.0,
        goodput_per_s=0.0,
        good_share=0.0,
        mean_prompt_tokens=_mean([trace.prompt_tokens for trace in good]),
        mean_output_tokens=_mean([trace.output_tokens for trace in good]),
        cached_prompt_share=cached_prompt_share if share is None else share,
        usage_reported=has_usage,
        warmup_requests=window.warmup_requests,
        warmup_stable=window.warmup_stable,
        client=client,
    )
    result = with_goodput(result, counted, slo)
    result = result.model_copy(update={"client": _weighed(client, result)})
    return result.model_copy(update={"notes": (*_notes(result, good), *_error_notes(counted), *notes)})


def _weighed(client: ClientHealth, result: LoadResult) -> ClientHealth:
    """A late client only matters where its lateness is visible in what it measured."""
    if result.ttft_s is None or client.cpu_share > MAX_CLIENT_CPU_SHARE:
        return client
    negligible = client.loop_lag_p99_s < NEGLIGIBLE_LAG * result.ttft_s.p50
    return client.model_copy(update={"verdict": "ok"}) if negligible else client


def error_kind(error: str) -> str:
    """``http_500: the server's words`` → ``http_500``."""
    return error.partition(":")[0]


def _values(metric: Callable[[RequestTrace], float | None], traces: Sequence[RequestTrace]) -> list[float]:
    return [value for value in map(metric, traces) if value is not None]


def _mean(counts: Sequence[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) / len(known) if known and len(known) == len(counts) else None


def _cached_share(good: Sequence[RequestTrace]) -> float | None:
    known = [trace for trace in good if trace.cached_tokens is not None and trace.prompt_tokens]
    if not known:
        return None
    return sum(trace.cached_tokens or 0 for trace in known) / sum(trace.prompt_tokens or 0 for trace in known)


def _notes(result: LoadResult, good: Sequence[RequestTrace]) -> list[str]:
    notes = []
    if 0 < len(good) < FEW_FOR_P99:
        notes.append(f"{len(good)} requests: P99 is close to the slowest one; about 1000 requests make it reliable")
    if not result.usage_reported:
        notes.append("the server reports no usage: output tokens are counted as chunks, prompt tokens are estimates")
    chunks = sum(len(trace.chunk_s) for trace in good)
    per_chunk = sum(map(output_tokens, good)) / chunks if chunks else 1.0
    if good and chunks == len(good) and per_chunk > 1:
        notes.append("every answer came in one piece: the server does not stream, so TTFT is E2E and TPOT is unknown")
    elif per_chunk > 1.5:
        notes.append(f"a chunk holds {per_chunk:.1f} tokens on average: ITL is the time between chunks, not tokens")
    aimed = sum(trace.target_prompt_tokens for trace in good) / len(good) if good else 0.0
    found = result.mean_prompt_tokens
    if found is not None and abs(found - aimed) > 0.05 * aimed:
        notes.append(f"prompts have {found:.0f} tokens on average, {aimed:.0f} were aimed at")
    cached = result.cached_prompt_share
    if cached is not None and cached > CACHED_IS_SUSPECT:
        notes.append(f"{format_share(cached)} of the prompt tokens came from the server's prefix cache")
    if not result.client.ok:
        notes.append(f"the client could not keep up, latencies may be too high: {result.client.verdict}")
    if not result.warmup_stable:
        notes.append(f"latencies had not settled after {result.warmup_requests} warm-up requests")
    return notes


def _error_notes(counted: Sequence[RequestTrace]) -> list[str]:
    """One example of each kind of error, in the server's own words."""
    examples: dict[str, str] = {}
    for trace in counted:
        if trace.error is not None:
            examples.setdefault(error_kind(trace.error), trace.error)
    return list(examples.values())
