"""Was the client the bottleneck? How late its event loop ran, and how much CPU it used."""

from __future__ import annotations

import asyncio
import time

from model_optimizer.loadgen.http import clock
from model_optimizer.metrics.loads import MAX_CLIENT_CPU_SHARE
from model_optimizer.metrics.samples import percentile
from model_optimizer.records.measurement import ClientHealth
from model_optimizer.units import format_seconds, format_share

SAMPLE_EVERY_S = 0.01
MAX_LAG_S = 0.005
MAX_CPU_SHARE = MAX_CLIENT_CPU_SHARE
"""Beyond these, the client's own delays are a visible part of what it measures: of a TTFT of 50 ms, 5 ms are a tenth.
"""


class HealthWatch:
    """Samples the loop's lateness while ``run`` is running; ``restart`` forgets the past (the warm-up)."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self._lags_s: list[float] = []
        self._since_s = clock()
        self._cpu_since_s = time.process_time()

    async def run(self) -> None:
        """Ask to be woken every 10 ms and note how late that is; a timer's own millisecond is part of it."""
        while True:
            due = clock() + SAMPLE_EVERY_S
            await asyncio.sleep(SAMPLE_EVERY_S)
            self._lags_s.append(max(0.0, clock() - due))

    def verdict(self) -> ClientHealth:
        """P99 of the lateness, the process's CPU time / wall time, and what follows."""
        lag_s = percentile(sorted(self._lags_s) or [0.0], 0.99)
        wall_s = clock() - self._since_s
        share = (time.process_time() - self._cpu_since_s) / wall_s if wall_s > 0 else 0.0
        problems = []
        if lag_s > MAX_LAG_S:
            waits = "" if share > MAX_CPU_SHARE else ", waiting for a CPU that others use"
            problems.append(f"its event loop ran {format_seconds(lag_s)} late (P99){waits}")
        if share > MAX_CPU_SHARE:
            problems.append(f"it used {format_share(share)} of a core")
        return ClientHealth(loop_lag_p99_s=lag_s, cpu_share=share, verdict="; ".join(problems) or "ok")
