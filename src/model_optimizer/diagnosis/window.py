"""From several looks at a server's metrics page to the numbers of the time between them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from model_optimizer.diagnosis.prometheus import Page, latency, rise, total, went_back
from model_optimizer.records.live import (
    CounterName,
    EngineMetrics,
    GaugeName,
    HistogramName,
    Scrape,
    Window,
    WindowLatency,
)

LATENCIES: tuple[HistogramName, ...] = ("ttft", "itl", "tpot", "e2e", "queue", "prefill", "decode")


class Look(NamedTuple):
    """A scrape that brought a page with samples."""

    scrape: Scrape
    page: Page


def which_engine(page: Page, known: Sequence[EngineMetrics]) -> EngineMetrics | None:
    """The engine most of whose marks are on the page; ``None``: none of the known ones."""
    counts = [(sum(name.startswith(engine.marks) for name in page.samples), engine) for engine in known]
    most = max(counts, key=lambda pair: pair[0], default=(0, None))
    return most[1] if most[0] else None


def look_at(scrapes: Sequence[Scrape], engine: EngineMetrics) -> list[Look]:
    """The scrapes that have samples of this engine, parsed."""
    looks = (Look(scrape, Page(scrape.page, engine.marks)) for scrape in scrapes if scrape.page)
    return [look for look in looks if look.page]


def window(looks: Sequence[Look], engine: EngineMetrics, *, num_failed: int = 0, slots: float | None = None) -> Window:
    """The numbers between the first look and the last; after a restart, those since the last restart.

    ``slots``: how many requests may run at once, where something else than the page says so.
    """
    if not looks:
        return Window(seconds=0.0, num_looks=0, num_failed_looks=num_failed)
    kept, restarts = _since_restart(looks, engine)
    first, last = kept[0], kept[-1]
    reader = _Reader(first.page, last.page, engine)
    seconds = last.scrape.at_s - first.scrape.at_s
    running, waiting = _gauges(kept, engine, "running"), _gauges(kept, engine, "waiting")
    usage = _gauges(kept, engine, "kv_usage", mean=True)
    step_tokens, steps = reader.latency("step_tokens"), reader.rise("steps")
    finished = reader.finished()
    return Window(
        seconds=seconds,
        num_looks=len(kept),
        num_failed_looks=num_failed,
        num_restarts=restarts,
        running=_mean(running),
        running_max=max(running, default=None),
        running_min=min(running, default=None),
        waiting=_mean(waiting),
        waiting_max=max(waiting, default=None),
        busy_share=_mean([float(value > 0) for value in running]),
        waiting_share=_mean([float(value > 0) for value in waiting]),
        in_system=_per(reader.spent_seconds(), seconds),
        kv_usage=_mean(usage),
        kv_usage_max=max(usage, default=None),
        slots=slots if slots is not None else _mean(_gauges(kept, engine, "slots")),
        prompt_tokens_per_s=_per(reader.rise("prompt_tokens"), seconds),
        generation_tokens_per_s=_per(reader.rise("generation_tokens"), seconds),
        prefix_hit_share=_hit_share(reader, kept, engine),
        preemptions=reader.rise("preemptions"),
        requests_per_s=_per(sum(finished.values()) if engine.finished else reader.requests(), seconds),
        finished=finished | reader.unfinished(),
        steps_per_s=_per(steps, seconds),
        step_tokens=step_tokens.mean if step_tokens else None,
        prompt_seconds=reader.rise("prompt_seconds"),
        generation_seconds=reader.rise("generation_seconds"),
        **{name: reader.latency(name) for name in LATENCIES},
        scheduler_cores=_per(reader.rise("scheduler_cpu_seconds"), seconds),
        forward_share=_per(reader.rise("busy_seconds"), seconds),
        **_processes(first.scrape, last.scrape),
        gpu_busy=_mean([look.scrape.gpu_busy for look in kept if look.scrape.gpu_busy is not None]),
        settings=_settings(last.page, engine),
    )


class _Reader:
    """Differences of the engine's metrics between two pages."""

    def __init__(self, before: Page, after: Page, engine: EngineMetrics) -> None:
        self._before, self._after, self._engine = before, after, engine

    def rise(self, name: CounterName) -> float | None:
        """How much that counter grew between the pages."""
        found = (rise(self._before, self._after, m, self._engine.repeated) for m in self._engine.counters.get(name, ()))
        return next((value for value in found if value is not None), None)

    def latency(self, name: HistogramName) -> WindowLatency | None:
        """What that histogram observed between the pages."""
        metrics = self._engine.histograms.get(name, ())
        found = (latency(self._before, self._after, m, self._engine.repeated) for m in metrics)
        return next((value for value in found if value is not None), None)

    def requests(self) -> float | None:
        """Requests that ended: the counter, else what the E2E histogram observed."""
        counted = self.rise("requests")
        if counted is not None:
            return counted
        ended = self.latency("e2e")
        if ended is not None:
            return float(ended.count)
        return 0.0 if self._engine.histograms.get("e2e") else None

    def spent_seconds(self) -> float | None:
        """Seconds that requests spent in the server: their latencies, else the slots' time where the page has that."""
        ended = self.latency("e2e")
        if ended is not None:
            return ended.count * ended.mean
        if self._engine.histograms.get("e2e"):
            return None  # the page has it, and no request has ended
        parts = (self.rise("prompt_seconds"), self.rise("generation_seconds"))
        return sum(part for part in parts if part is not None) if any(part is not None for part in parts) else None

    def finished(self) -> dict[str, float]:
        """Requests that ended, by reason; reasons that did not occur are left out."""
        if self._engine.finished is None:
            return {}
        metric, label = self._engine.finished
        reasons = {value for key in self._after.series(metric) for name, value in key if name == label}
        grown = {r: rise(self._before, self._after, f"{metric}{{{label}={r}}}", self._engine.repeated) for r in reasons}
        return {reason: value for reason, value in sorted(grown.items()) if value}

    def unfinished(self) -> dict[str, float]:
        """Counters of requests that did not end well, where the engine counts them apart."""
        counted = {"abort": self.rise("aborted"), "error": self.rise("failed")}
        return {reason: value for reason, value in counted.items() if value}


def _since_restart(looks: Sequence[Look], engine: EngineMetrics) -> tuple[Sequence[Look], int]:
    counters = tuple(itertools.chain.from_iterable(engine.counters.values()))
    back = [at for at in range(1, len(looks)) if went_back(looks[at - 1].page, looks[at].page, counters)]
    return (looks[back[-1] :], len(back)) if back else (looks, 0)


def _gauges(looks: Sequence[Look], engine: EngineMetrics, name: GaugeName, *, mean: bool = False) -> list[float]:
    """One value a look: summed over the engines of the page, or their mean (shares)."""
    values = []
    for look in looks:
        for metric in engine.gauges.get(name, ()):
            series = look.page.series(metric)
            value = total(series, engine.repeated)
            if value is not None:
                groups = {frozenset(p for p in key if p[0] not in engine.repeated) for key in series}
                values.append(value / len(groups) if mean else value)
                break
    return values


def _hit_share(reader: _Reader, looks: Sequence[Look], engine: EngineMetrics) -> float | None:
    """Prompt tokens that came from the prefix cache, as a share of those asked for in this window."""
    hits, asked = reader.rise("prefix_hits"), reader.rise("prefix_queries")
    if hits is None or asked is None:
        hits, computed = reader.rise("cached_tokens"), reader.rise("prompt_tokens")
        if hits is None or computed is None:
            return _mean(_gauges(looks, engine, "prefix_hit_share", mean=True))
        # llama.cpp counts what it computed, SGLang and TensorRT-LLM what was asked for.
        asked = computed + hits if engine.engine == "llama.cpp" else computed
    return hits / asked if asked else None


def _processes(first: Scrape, last: Scrape) -> dict[str, float | None]:
    """Cores in use by the server's processes; ``None`` where they could not be seen."""
    seconds = last.at_s - first.at_s
    used = [last.process_cpu_s[pid] - cpu for pid, cpu in first.process_cpu_s.items() if pid in last.process_cpu_s]
    if not used or seconds <= 0:
        return {"busiest_process_cores": None, "all_processes_cores": None}
    return {"busiest_process_cores": max(used) / seconds, "all_processes_cores": sum(used) / seconds}


def _settings(page: Page, engine: EngineMetrics) -> dict[str, str]:
    found = {option: page.label(metric, label) for option, (metric, label) in engine.settings.items()}
    return {option: value for option, value in found.items() if value is not None}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _per(amount: float | None, seconds: float) -> float | None:
    return amount / seconds if amount is not None and seconds > 0 else None
