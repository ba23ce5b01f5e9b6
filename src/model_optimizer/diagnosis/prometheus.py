"""A Prometheus text page: its samples, and the difference between two of them.

Own parser rather than prometheus_client's: that one refuses a whole page for one broken line, drops the line's place,
and its package starts collectors on import. On vLLM's real page both read the same samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from model_optimizer.records.live import Between, WindowLatency

Labels = frozenset[tuple[str, str]]
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+(?:\.\d+)?)?\s*$")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE = re.compile(r"\\(.)")
_EXEMPLAR = re.compile(r"\s#\s\{.*$")


class Page:
    """The samples of one page by metric name. ``num_bad`` lines could not be read; a page in HTML has no samples.

    ``marks``: only metrics whose names begin so, which is many times faster on the pages of large deployments.
    """

    def __init__(self, text: str, marks: tuple[str, ...] = ("",)) -> None:
        self.samples: dict[str, dict[Labels, float]] = {}
        self.num_bad = 0
        for line in text.splitlines():
            if line.startswith(marks) and line and line[0] not in "#<" and not line.isspace():
                self._read(line)

    def __bool__(self) -> bool:
        return bool(self.samples)

    def _read(self, line: str) -> None:
        found = _SAMPLE.match(_EXEMPLAR.sub("", line) if " # {" in line else line)
        value = _number(found[3]) if found else None
        if found is None or value is None:
            self.num_bad += 1
            return
        labels = frozenset((k, _unescaped(v)) for k, v in _LABEL.findall(found[2])) if found[2] else frozenset()
        self.samples.setdefault(found[1], {})[labels] = value

    def series(self, wanted: str) -> Mapping[Labels, float]:
        """The samples of a metric; ``name{label=a|b}`` takes those whose label has one of the values.

        Client libraries add ``_total`` to counters, some engines by hand too: either spelling finds either.
        """
        name, _, condition = wanted.removesuffix("}").partition("{")
        found = next((self.samples[n] for n in _spellings(name) if n in self.samples), {})
        if not condition:
            return found
        label, _, values = condition.partition("=")
        return {key: value for key, value in found.items() if any((label, v) in key for v in values.split("|"))}

    def label(self, metric: str, label: str) -> str | None:
        """A label's value on any sample of the metric: info metrics keep settings in labels."""
        for key in self.series(metric):
            for name, value in key:
                if name == label:
                    return value
        return None


def total(series: Mapping[Labels, float], repeated: tuple[str, ...] = ()) -> float | None:
    """The sum of the samples; ranks that repeat each other's numbers (labels ``repeated``) count once, the largest."""
    groups: dict[Labels, float] = {}
    for key, value in series.items():
        if not math.isnan(value):
            group = frozenset(pair for pair in key if pair[0] not in repeated)
            groups[group] = max(value, groups.get(group, value))
    return sum(groups.values()) if groups else None


def went_back(before: Page, after: Page, counters: Iterator[str] | tuple[str, ...]) -> bool:
    """True where one of these counters is lower than before: the server (or one of its engines) started anew."""
    for name in counters:
        earlier = before.series(name)
        if any(value < earlier.get(key, -math.inf) for key, value in after.series(name).items()):
            return True
        if earlier and not after.series(name) and any(earlier.values()):
            return True
    return False


def rise(before: Page, after: Page, name: str, repeated: tuple[str, ...] = ()) -> float | None:
    """How much a counter grew. A series that is new began at zero. ``None`` where the page does not have it."""
    later = after.series(name)
    if not later:
        return None
    earlier = before.series(name)
    return total({key: value - earlier.get(key, 0.0) for key, value in later.items()}, repeated)


def latency(before: Page, after: Page, name: str, repeated: tuple[str, ...] = ()) -> WindowLatency | None:
    """What a histogram observed between two pages; ``None`` where the page has none, or nothing was observed."""
    count = rise(before, after, f"{name}_count", repeated)
    summed = rise(before, after, f"{name}_sum", repeated)
    later, earlier = after.samples.get(f"{name}_bucket", {}), before.samples.get(f"{name}_bucket", {})
    if not later or count is None or summed is None or count < 1:
        return None
    bounds = sorted({b for key in later if (b := _bound(key)) is not None})
    cumulative = []
    for bound in bounds:
        grown = {
            frozenset(p for p in key if p[0] != "le"): value - earlier.get(key, 0.0)
            for key, value in later.items()
            if _bound(key) == bound
        }
        cumulative.append((bound, total(grown, repeated) or 0.0))
    if not cumulative or cumulative[-1][1] <= 0:
        return None
    p50, p90, p95, p99 = (_quantile(cumulative, share) for share in (0.50, 0.90, 0.95, 0.99))
    return WindowLatency(count=round(count), mean=summed / count, p50=p50, p90=p90, p95=p95, p99=p99)


def _quantile(cumulative: list[tuple[float, float]], share: float) -> Between:
    """Linear inside the bucket, as Prometheus' ``histogram_quantile`` does; the last, open bucket gives its lower end.

    ``cumulative``: (upper bound, observations up to it), ascending; at least one observation.
    """
    rank, low, below = share * cumulative[-1][1], 0.0, 0.0
    for bound, upto in cumulative:
        if upto >= rank and upto > below:
            if math.isinf(bound):
                return Between(value=low, low=low, high=None)
            return Between(value=low + (bound - low) * (rank - below) / (upto - below), low=low, high=bound)
        low, below = (bound if not math.isinf(bound) else low), upto
    return Between(value=low, low=low, high=None)


def _bound(key: Labels) -> float | None:
    return next((_number(value) for name, value in key if name == "le"), None)


def _spellings(name: str) -> tuple[str, ...]:
    return (name, f"{name}_total") if not name.endswith("_total") else (name, name.removesuffix("_total"))


def _number(text: str) -> float | None:
    try:
        return float(text.replace("Inf", "inf"))
    except ValueError:
        return None


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], text) if "\\" in text else text
