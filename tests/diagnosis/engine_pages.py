"""Metrics pages as the engines write them: names, suffixes, labels and bucket bounds of the real ones.

Values are chosen by the test; real recordings of running servers are in ``recorded``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from model_optimizer.records.live import Scrape

LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SGLANG_TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
SGLANG_ITL = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 1, 2)
SGLANG_QUEUE = (0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60)

BUCKETS: dict[str, Sequence[float]] = {
    "vllm:time_to_first_token_seconds": TTFT,
    "vllm:inter_token_latency_seconds": ITL,
    "vllm:time_per_output_token_seconds": ITL,
    "vllm:request_time_per_output_token_seconds": ITL,
    "vllm:iteration_tokens_total": STEP,
    "sglang:time_to_first_token_seconds": SGLANG_TTFT,
    "sglang:inter_token_latency_seconds": SGLANG_ITL,
    "sglang:e2e_request_latency_seconds": SGLANG_TTFT,
    "sglang:queue_time_seconds": SGLANG_QUEUE,
    "trtllm_time_to_first_token_seconds": TTFT,
    "trtllm_time_per_output_token_seconds": ITL,
    "tgi_batch_inference_duration": LATENCY,
}
Observed = Mapping[str, Sequence[tuple[int, float]]]
"""Histogram → how many observations of which value."""


class State(NamedTuple):
    """What a page holds. Counters are written with their suffix; names may carry labels: ``name{a="b"}``."""

    gauges: Mapping[str, float] = {}
    counters: Mapping[str, float] = {}
    observed: Observed = {}
    info: Mapping[str, Mapping[str, str]] = {}
    labels: Mapping[str, str] = {}

    def text(self) -> str:
        """The page."""
        lines = ["# HELP python_info Python platform information", "# TYPE python_info gauge",
                 'python_info{implementation="CPython",major="3",minor="12"} 1.0']  # fmt: skip
        for kind, values in (("gauge", self.gauges), ("counter", self.counters)):
            for name, value in values.items():
                lines += [f"# TYPE {name.split('{')[0]} {kind}", f"{self._named(name)} {value!r}"]
        for name, groups in self.observed.items():
            lines += [
                f"# HELP {name} Histogram.",
                f"# TYPE {name.split('{')[0]} histogram",
                *self._histogram(name, groups),
            ]
        for name, labels in self.info.items():
            inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
            lines += [f"# TYPE {name} gauge", f"{name}{{{inside}}} 1.0"]
        return "\n".join(lines) + "\n"

    def _named(self, name: str, **more: str) -> str:
        plain, _, own = name.removesuffix("}").partition("{")
        pairs = [f'{key}="{value}"' for key, value in {**self.labels, **more}.items()]
        inside = ",".join([*([own] if own else []), *pairs])
        return f"{plain}{{{inside}}}" if inside else plain

    def _histogram(self, name: str, groups: Sequence[tuple[int, float]]) -> list[str]:
        plain, brace, own = name.partition("{")
        lines = []
        for bound in (*BUCKETS.get(plain, LATENCY), float("inf")):
            le = "+Inf" if bound == float("inf") else repr(float(bound))
            upto = sum(number for number, value in groups if value <= bound)
            lines.append(f"{self._named(f'{plain}_bucket{brace}{own}', le=le)} {float(upto)}")
        lines.append(f"{self._named(f'{plain}_sum{brace}{own}')} {sum(n * v for n, v in groups)!r}")
        lines.append(f"{self._named(f'{plain}_count{brace}{own}')} {float(sum(n for n, _ in groups))}")
        return lines


def looks(*states: State, every_s: float = 1.0, cores: float | None = None, gpu: float | None = None) -> list[Scrape]:
    """One look a state. ``cores``: CPU use of the server's busiest process."""
    return [
        Scrape(
            at_s=100.0 + at * every_s,
            page=state.text(),
            process_cpu_s={} if cores is None else {4242: 7.0 + cores * at * every_s, 4243: 0.1},
            gpu_busy=gpu,
        )
        for at, state in enumerate(states)
    ]


def between(first: State, last: State, gauges: Sequence[Mapping[str, float]]) -> list[State]:
    """A look for each entry of ``gauges``: counters and histograms are the first's, in the last look the last's."""
    return [(first if at < len(gauges) - 1 else last)._replace(gauges=entry) for at, entry in enumerate(gauges)]


def recorded(path: Path) -> tuple[dict[str, str], list[Scrape]]:
    """A recording: ``# key: value`` lines, then the looks, each with the lines that changed since the one before."""
    facts: dict[str, str] = {}
    lines: dict[str, str] = {}
    scrapes: list[Scrape] = []
    at_s: float | None = None
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("@ "):
            if at_s is not None:
                scrapes.append(Scrape(at_s=at_s, page="\n".join(lines.values())))
            at_s = float(line[2:])
        elif at_s is None:
            key, _, value = line.removeprefix("# ").partition(": ")
            facts[key] = value
        else:
            lines[line.rpartition(" ")[0] if not line.startswith("#") else line] = line
    assert at_s is not None
    return facts, [*scrapes, Scrape(at_s=at_s, page="\n".join(lines.values()))]
