"""What a process tree uses: memory and CPU time, sampled while it runs."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil

_INTERVAL_S = 0.2
_FIRST_INTERVAL_S = 0.02
_MAX_SHARE_OF_TIME = 0.02
"""Reading the page tables of a large process takes milliseconds; sampling backs off before it costs more than this."""


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process: its own pages plus its share of those it shares with others.

    Source: ``Pss`` of ``/proc/<pid>/smaps_rollup``; where that cannot be read (another system, a hardened kernel) the
    resident set size, which counts shared pages in every process. 0 for a process that is gone.
    """
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


class Meter:
    """Samples everything below ``root`` (itself left out) about five times a second on a thread of its own."""

    def __init__(self, root: int) -> None:
        self.peak_memory_bytes = 0
        self._root = root
        self._cpu_seconds = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"meter-{root}", daemon=True)
        self._thread.start()

    def memory_bytes(self) -> int:
        """PSS of the tree now, in bytes; 0 when nothing runs any more."""
        now = sum(pss_bytes(process.pid) for process in self._tree())
        self.peak_memory_bytes = max(self.peak_memory_bytes, now)
        return now

    def cpu_seconds(self) -> float:
        """User and system time of the tree since its start, ended processes included."""
        total = 0.0
        with contextlib.suppress(psutil.Error):
            for process in (psutil.Process(self._root), *self._tree()):
                with contextlib.suppress(psutil.Error):
                    used = process.cpu_times()
                    # what ended processes used is kept by whoever waited for them
                    total += used.children_user + used.children_system
                    total += used.user + used.system if process.pid != self._root else 0.0
        self._cpu_seconds = max(self._cpu_seconds, total)
        return self._cpu_seconds

    def stop(self) -> None:
        """End sampling; the peak stays readable."""
        self._stop.set()
        self._thread.join()

    def _tree(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._root).children(recursive=True)
        except psutil.Error:
            return []

    def _run(self) -> None:
        interval = _FIRST_INTERVAL_S  # short programs get a sample too
        while not self._stop.wait(interval):
            started = time.thread_time()
            self.memory_bytes()
            cost = time.thread_time() - started
            interval = max(min(2 * interval, _INTERVAL_S), cost / _MAX_SHARE_OF_TIME)
