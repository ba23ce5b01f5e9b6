"""The micro-probe: how fast memory, matrix units, links and disk of this machine really are, in about 20 seconds.

Data sheets do not know of a laptop's power limit, a MIG slice, a slot with half its lanes or a neighbour on the same
memory. Memory of the CPU is measured here with numpy; everything that needs torch by workers/microprobe.py, where an
environment has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from model_optimizer.errors import HostError, StageFailure
from model_optimizer.host.jobs import run_job
from model_optimizer.host.microprobe_class import against_class
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.base import Emit
from model_optimizer.records.doctor import ProbedValue
from model_optimizer.records.hardware import HostSpec
from model_optimizer.records.tooling import Job
from model_optimizer.units import format_bytes

TOOL = "transformers"
_ARRAY = 1 << 24  # float64 elements, all threads together: 128 MiB an array, beyond any cache but the largest
_FILE_BYTES = 512 << 20
_LEAST_FILE_BYTES = 64 << 20
_BLOCK = 4 << 20
_MATRIX = (1024, 1024, 1024)
_BF16_UNITS = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
_INT8_UNITS = frozenset(("avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "asimddp"))


def measure(
    toolbox: Toolbox, host: HostSpec, *, folder: Path, scratch: Path, log: Path, emit: Emit, seconds: float = 20.0
) -> tuple[ProbedValue, ...]:
    """Measure, and compare with what the knowledge base says of a known GPU. Leaves nothing behind.

    ``folder`` is where models lie: its disk is read. No environment is built for this: without torch the CPU's matrix
    rate is numpy's, and a GPU is left out, which is said as a note. Never raises for what cannot be measured.
    """
    emit("progress", what="memory bandwidth", done=0, total=3, unit="")
    found = list(cpu_memory(host.cpu_cores, seconds * 0.15))
    emit("progress", what="disk", done=1, total=3, unit="")
    disk = disk_read(folder, seconds * 0.15)
    if isinstance(disk, str):
        emit("note", text=f"disk not measured: {disk}")
    else:
        found.append(disk)
    emit("progress", what="matrix rates", done=2, total=3, unit="")
    found += _with_torch(toolbox, host, scratch=scratch, log=log, emit=emit, seconds=seconds * 0.5)
    return tuple(found)


def _with_torch(
    toolbox: Toolbox, host: HostSpec, *, scratch: Path, log: Path, emit: Emit, seconds: float
) -> tuple[ProbedValue, ...]:
    features = frozenset(host.cpu_features)
    payload = {
        "device": "cuda" if host.gpus else "cpu",
        "seconds": seconds,
        "bf16": bool(features & _BF16_UNITS),
        "int8": bool(features & _INT8_UNITS),
    }
    why = f"no environment with torch (model-optimize tools install {TOOL})"
    if toolbox.installed().get(TOOL):
        try:
            job = Job(tool=TOOL, worker="microprobe", payload=payload, timeout_s=120.0 + 2 * seconds)
            done = run_job(job, toolbox.ensure(TOOL), target=None, scratch=scratch, log=log, emit=emit)
            for skipped in done.result.get("skipped", ()):
                emit("note", text=f"not measured: {skipped['name']}: {skipped['why']}")
            return against_class(done.result)
        except (StageFailure, HostError) as error:
            why = f"{error.what}: {error.cause}"
    if host.gpus:
        emit("note", text=f"the GPU was not measured: {why}")
        return ()
    emit("note", text=f"matrix rate by numpy in float32 only: {why}")
    return (cpu_matrix(seconds / 4),)


def cpu_memory(cores: int, seconds: float) -> tuple[ProbedValue, ...]:
    """Bytes a second of a = b + c (STREAM's add: three arrays, read and written bytes) with one core and with all."""
    plans = [(1, "one core"), (cores, "all cores")][: 2 if cores > 1 else 1]
    found: list[ProbedValue] = []
    for threads, name in plans:
        rates = _add_rates(threads, seconds / len(plans))
        measured = statistics.median(rates)
        slower = bool(found) and measured < found[0].measured
        found.append(
            ProbedValue(
                name=f"memory, {name}",
                unit="B/s",
                measured=measured,
                how=f"numpy a = b + c, float64, {threads} thread{'s' if threads > 1 else ''}, {_spread(rates)}",
                note="less than one core alone: other programs used the cores or the memory meanwhile"
                if slower
                else "",
            )
        )
    return tuple(found)


def _add_rates(threads: int, seconds: float) -> list[float]:
    """Every thread has arrays of its own, touched by itself first, so that they lie in its own memory node."""
    numel = max(1 << 20, _ARRAY // threads)

    def arrays(_: int) -> tuple[Any, Any, Any]:
        return tuple(np.full(numel, 1.0) for _ in range(3))  # type: ignore[return-value]

    def add(three: tuple[Any, Any, Any]) -> None:
        np.add(three[1], three[2], out=three[0])

    with ThreadPoolExecutor(threads) as pool:
        own = list(pool.map(arrays, range(threads)))

        def everybody() -> None:
            list(pool.map(add, own))

        return [threads * numel * 24 / s for s in _repeats(everybody, seconds)]


def cpu_matrix(seconds: float) -> ProbedValue:
    """The float32 product of numpy's own library, where there is no torch."""
    m, n, k = _MATRIX
    x, w = np.ones((m, k), dtype=np.float32), np.ones((k, n), dtype=np.float32)
    rates = [2 * m * n * k / s for s in _repeats(lambda: x @ w, seconds)]
    how = f"numpy, {_spread(rates)}"
    return ProbedValue(name=f"matrix fp32, {m} x {n} x {k}", unit="FLOP/s", measured=statistics.median(rates), how=how)


def disk_read(folder: Path, seconds: float) -> ProbedValue | str:
    """Sequential read of a file written for it, past the page cache; else the reason why not.

    The file has no name in the folder (or loses it at once), so that nothing is left even if we are killed.
    """
    try:
        place = next(p for p in (folder, *folder.parents) if p.is_dir())
        size = min(_FILE_BYTES, shutil.disk_usage(place).free // 10) // _BLOCK * _BLOCK
        if size < _LEAST_FILE_BYTES:
            return f"less than {format_bytes(10 * _LEAST_FILE_BYTES)} are free at {place}"
        with tempfile.TemporaryFile(dir=place) as file, mmap.mmap(-1, _BLOCK) as block:
            return _read_back(file.fileno(), size, block, seconds, place)
    except OSError as error:
        return f"{folder}: {error.strerror or error}"


def _read_back(descriptor: int, size: int, block: mmap.mmap, seconds: float, place: Path) -> ProbedValue | str:
    block.write(os.urandom(_BLOCK))
    until = time.perf_counter() + 2 * seconds  # slow disks get a smaller file, not a longer wait
    written = 0
    while written < size and (written < _LEAST_FILE_BYTES or time.perf_counter() < until):
        written += os.pwrite(descriptor, block, written)
    os.fsync(descriptor)
    how = _past_the_cache(descriptor)
    rates: list[float] = []
    at, until = 0, time.perf_counter() + seconds
    while at + _BLOCK <= written and (len(rates) < 4 or time.perf_counter() < until):
        began = time.perf_counter()
        read = os.preadv(descriptor, [block], at)
        rates.append(read / (time.perf_counter() - began))
        at += read
    told = f"{len(rates)} blocks of {format_bytes(_BLOCK)}, {how}, at {place}, {_spread(rates)}"
    note = "written just before: the device's own cache may have helped" if statistics.median(rates) > 1e9 else ""
    return ProbedValue(name="disk, sequential read", unit="B/s", measured=statistics.median(rates), how=told, note=note)


def _past_the_cache(descriptor: int) -> str:
    """Make reads go to the disk; how that was done."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
        os.preadv(descriptor, [mmap.mmap(-1, _BLOCK)], 0)
        return "O_DIRECT"
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return "page cache dropped"


def _repeats(work: Callable[[], object], budget_s: float) -> list[float]:
    """Seconds of each repeat, at least three, after one that warms up."""
    work()
    taken: list[float] = []
    until = time.perf_counter() + budget_s
    while len(taken) < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken


def _spread(rates: Sequence[float]) -> str:
    """How far the middle half of the repeats lies around the median, and how many there are."""
    low, middle, high = statistics.quantiles(rates, n=4, method="inclusive")
    return f"median of {len(rates)}, half of them within ±{(high - low) / 2 / middle:.0%}"
