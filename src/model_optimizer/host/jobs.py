"""Runs a worker script in its tool's environment: payload.json in, progress lines out, result.json back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from model_optimizer.errors import DiskFull, JobFailed, ToolBroken
from model_optimizer.host.causes import count_oom_kills, describe_status, first_cause, ran_out_of_memory
from model_optimizer.host.probe import free_disk_bytes
from model_optimizer.host.process import Completed, run
from model_optimizer.host.toolenv import ToolEnv
from model_optimizer.records.base import Emit
from model_optimizer.records.tooling import Job
from model_optimizer.units import format_bytes

_PROGRESS = "@progress "
_SPARE_BYTES = 100 * 10**6
_EVIDENCE_LINES = 12


class JobResult(NamedTuple):
    """What a worker gave back, and what it took. ``peak_memory_bytes`` is the PSS of its process tree."""

    result: dict[str, Any]
    seconds: float
    peak_memory_bytes: int


def run_job(job: Job, env: ToolEnv, *, target: Path | None, scratch: Path, log: Path, emit: Emit) -> JobResult:
    """Run the job's worker; ``target`` is the folder it fills (made here), ``scratch`` holds payload and result.

    Raises ``JobFailed``, ``TimedOut``, ``DiskFull`` (before it starts where the expected output cannot fit, or while it
    writes), ``ToolBroken``, ``NotWritable``.
    """
    script = worker_path(job.worker)
    if target is not None:
        target.mkdir(parents=True, exist_ok=True)
        _require_space(job, target)
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="job-", dir=scratch) as folder:  # several jobs of a stage share scratch
        payload, result = Path(folder) / "payload.json", Path(folder) / "result.json"
        own = {"target": str(target) if target is not None else None, "result": str(result)}
        payload.write_bytes(orjson.dumps(job.payload | own))
        oom_kills = count_oom_kills()
        done = run(
            [str(env.python), str(script), str(payload)],
            env=job.env,
            log=log,
            timeout_s=job.timeout_s,
            on_line=lambda line: _tell(line, script.stem, emit),
        )
        if done.returncode != 0:
            raise _failure(job, script.stem, done, log, count_oom_kills() - oom_kills)
        return JobResult(_read_result(result, script.stem, done, log), done.seconds, done.peak_memory_bytes)


def worker_path(worker: str) -> Path:
    """A worker script of the package by name (``gguf_convert``, ``gguf_convert.py``), or an absolute path as it is."""
    name = worker if worker.endswith(".py") else f"{worker}.py"
    path = Path(name) if Path(name).is_absolute() else Path(str(files("model_optimizer") / "workers" / name))
    if not path.is_file():
        raise ToolBroken(
            f"the worker {worker} is missing",
            cause=f"no file {path}",
            fix="install model-optimizer again: it is incomplete",
        )
    return path


def _tell(line: str, worker: str, emit: Emit) -> None:
    """Forward ``@progress {"done": 3, "total": 10, "what": "…"}``; anything else is output for the log."""
    if not line.startswith(_PROGRESS):
        return
    try:
        said = json.loads(line.removeprefix(_PROGRESS))
    except ValueError:
        return
    if isinstance(said, dict):
        what, unit = str(said.get("what", worker)), str(said.get("unit", ""))
        emit("progress", what=what, done=said.get("done", 0), total=said.get("total"), unit=unit)


def _read_result(path: Path, worker: str, done: Completed, log: Path) -> dict[str, Any]:
    try:
        result = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise JobFailed(
            f"{worker} ended without a result",
            cause=f"it ended well, but its result file cannot be read: {error}",
            fix="read its log; if this happens again, report it with the log",
            evidence=_evidence(done.tail),
            log=str(log),
        ) from error
    if not isinstance(result, dict):
        raise JobFailed(
            f"{worker} gave a result that is not an object",
            cause=f"its result file holds a {type(result).__name__}",
            fix="report this with the log",
            log=str(log),
        )
    return result


def _failure(job: Job, worker: str, done: Completed, log: Path, oom_kills: int) -> JobFailed | DiskFull:
    cause = first_cause(line for line in done.tail if not line.startswith(_PROGRESS)) or "it printed nothing"
    evidence = _evidence(done.tail)
    if any("No space left on device" in line for line in evidence):
        return DiskFull(
            f"the disk was full while {worker} was writing",
            cause=cause,
            fix="free some space, or choose another disk with MODEL_OPTIMIZER_HOME; "
            "what was finished before is kept, so run the same command again",
            evidence=evidence,
            log=str(log),
        )
    if ran_out_of_memory(done.returncode, evidence, oom_kills):
        return JobFailed(
            f"{worker} ran out of memory",
            cause=f"{describe_status(done.returncode)}; "
            f"its processes held {format_bytes(done.peak_memory_bytes)} at their peak",
            fix="close other programs, or take a smaller model or a machine with more memory",
            evidence=evidence,
            log=str(log),
        )
    return JobFailed(
        f"{worker} failed after {done.seconds:.0f} s ({describe_status(done.returncode)})",
        cause=cause,
        fix=f"read the log; if the environment itself is at fault: model-optimize tools verify {job.tool}",
        evidence=evidence,
        log=str(log),
    )


def _evidence(tail: Sequence[str]) -> list[str]:
    return [line for line in tail if line.strip() and not line.startswith(_PROGRESS)][-_EVIDENCE_LINES:]


def _require_space(job: Job, target: Path) -> None:
    free = free_disk_bytes(target)
    if job.expected_output_bytes and free < job.expected_output_bytes + _SPARE_BYTES:
        raise DiskFull(
            f"not enough free disk space for what {job.worker.removesuffix('.py')} writes",
            cause=f"it writes about {format_bytes(job.expected_output_bytes)}; "
            f"{format_bytes(free)} are free at {target}",
            fix="free some space, or choose another disk with MODEL_OPTIMIZER_HOME",
        )
