"""What a process tree uses: memory and CPU time, sampled while it runs."""

from __future__ import annotations

import contextlib
import math
import resource
import threading
import time
from pathlib import Path

import psutil

_INTERVAL_S = 0.2
_FIRST_INTERVAL_S = 0.02
_STARTING_S = 1.0
_GROWTH = 1.02
# Shares of time that measuring may take. Reading PSS walks the page tables of a process: 15 ms for 500 MB, measured.
_SHARE_STEADY = 0.005
_SHARE_GROWING = 0.05


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


def rss_bytes(pid: int) -> int:
    """Resident set size of one process, shared pages included: microseconds to read. 0 for a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


class Meter:
    """Samples everything below ``root`` (itself left out) on a thread of its own, without disturbing it.

    Five times a second the cheap resident set is read; PSS only where that has grown since, and once in a while,
    because pages that were shared can become private without any growth.
    """

    def __init__(self, root: int) -> None:
        self.peak_memory_bytes = 0
        self._root = root
        self._cpu_seconds = 0.0
        self._pids: tuple[int, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"meter-{root}", daemon=True)
        self._thread.start()

    def memory_bytes(self) -> int:
        """PSS of the tree now, in bytes; 0 when nothing runs any more."""
        self._pids = tuple(process.pid for process in self._tree())
        return self._sample()

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

    def _sample(self) -> int:
        now = sum(pss_bytes(pid) for pid in self._pids)
        self.peak_memory_bytes = max(self.peak_memory_bytes, now)
        return now

    def _run(self) -> None:
        started = time.monotonic()
        interval = _FIRST_INTERVAL_S  # short programs get a sample too
        tree, pss = _Cost(), _Cost()
        resident = 0
        while not self._stop.wait(interval):
            interval = min(2 * interval, _INTERVAL_S)
            if tree.affordable(_SHARE_STEADY) or time.monotonic() - started < _STARTING_S:
                with tree:
                    self._pids = tuple(process.pid for process in self._tree())
            now = sum(rss_bytes(pid) for pid in self._pids)
            if pss.affordable(_SHARE_GROWING if now > _GROWTH * resident else _SHARE_STEADY):
                resident = now
                with pss:
                    self._sample()


class _Cost:
    """What one kind of measurement costs, and whether it may be taken again."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began = self._last = -math.inf

    def affordable(self, share: float) -> bool:
        """Has enough time passed that the last one took no more than this share of it?"""
        return time.monotonic() - self._last >= self._seconds / share

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._seconds = time.thread_time() - self._began
        self._last = time.monotonic()
