"""When has a server settled? Judged from the requests before the window."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

from model_optimizer.loadgen.client import Shot

WINDOWS = 3
TOLERANCE = 0.10
NOISE = 3.3 * 1.25 * 1.4826
"""The range of three medians of w equal samples exceeds 3.3 standard errors in one case of 20.

A median's standard error is 1.25 · σ / √w; σ comes from the median absolute deviation, times 1.4826.
"""


class WarmUp:
    """Collects the warm-up's requests and tells when TTFT and TPOT have stopped moving.

    The first ``burst`` requests are the start-up burst and are left out. The rest is cut into windows of as many
    requests, three at least and twenty at most. Settled: over the last three windows the medians of TTFT, and those
    of TPOT, lie within 10 % of each other, or within what the noise inside the windows explains. TTFT is taken
    relative to its length class, so that a window with a long prompt more does not look like a slower server.
    """

    def __init__(self, burst: int) -> None:
        self.burst = burst
        self.window = min(max(3, burst), 20)
        self.num_requests = 0
        self._ttft_s: list[tuple[int, float]] = []
        self._tpot_s: list[float] = []

    def add(self, shot: Shot) -> bool:
        """One more finished request. True where a window is complete and the server has settled.

        Failed ones count but say nothing about speed.
        """
        self.num_requests += 1
        if self.num_requests <= self.burst or shot.error is not None:
            return False
        self._ttft_s.append((shot.target_prompt_tokens, shot.chunk_s[0] - shot.scheduled_s))
        gaps = len(shot.chunk_s) - 1
        self._tpot_s.append((shot.chunk_s[-1] - shot.chunk_s[0]) / gaps if gaps else 0.0)
        return len(self._ttft_s) % self.window == 0 and self.settled()

    def settled(self, windows: int = WINDOWS) -> bool:
        """True where the last ``windows`` windows agree; False also where there are too few requests to tell."""
        needed = windows * self.window
        if len(self._ttft_s) < needed:
            return False
        by_class: dict[int, list[float]] = defaultdict(list)
        for length, value in self._ttft_s:
            by_class[length].append(value)
        usual = {length: statistics.median(values) or 1.0 for length, values in by_class.items()}
        relative = [value / usual[length] for length, value in self._ttft_s[-needed:]]
        return self._agree(relative) and self._agree(self._tpot_s[-needed:])

    def _agree(self, values: list[float]) -> bool:
        windows = [values[at : at + self.window] for at in range(0, len(values), self.window)]
        medians = [statistics.median(window) for window in windows]
        apart = [abs(value - middle) for window, middle in zip(windows, medians, strict=True) for value in window]
        noise = NOISE * statistics.median(apart) / math.sqrt(self.window)
        return max(medians) - min(medians) <= max(TOLERANCE * min(medians), noise)
