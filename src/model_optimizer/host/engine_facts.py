"""What an installed engine says about itself: read once by a worker in the engine's own environment, then remembered.

The shipped table is right about the versions that were read; the installation is right about itself, and wins
(``kb.query.state(installed=…)``). Only what is installed already is asked: nothing is built for a question.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from model_optimizer.errors import DiskFull, JobFailed, NotWritable
from model_optimizer.host.jobs import run_job, worker_path
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.base import Emit
from model_optimizer.records.knowledge import FlagFact, InstalledEngine
from model_optimizer.records.tooling import Job

_FOLDER = "facts"
_TIMEOUT_S = 600.0  # importing a large engine from a cold disk takes minutes
_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


class _Reader(NamedTuple):
    """How an engine is asked. ``platforms`` are the builds of the tool that are this engine; empty: all of them."""

    tool: str
    worker: str
    platforms: tuple[str, ...] = ()


# The vLLM that runs on CPUs is an engine of its own in the knowledge base, with its own rules.
_READERS = {
    "vllm": _Reader("vllm", "vllm_facts", ("cuda", "rocm", "xpu")),
    "vllm-cpu": _Reader("vllm", "vllm_facts", ("cpu",)),
    "llama.cpp": _Reader("llama.cpp", "llama_cpp_facts"),
}


def readable_engines() -> tuple[str, ...]:
    """The engines (ids of the knowledge base) that can be asked."""
    return tuple(_READERS)


def installed_engine(toolbox: Toolbox, engine: str, *, emit: Emit) -> InstalledEngine | None:
    """What the installation of ``engine`` (an id of the knowledge base) says about itself.

    ``None``: it is not installed, or what is installed is its build for another platform, or nothing here can ask it.
    The answer is remembered by the tool's identity; the first takes as long as the engine's import (vLLM: 10 to 30 s).
    Raises ``JobFailed``, ``TimedOut``, ``ToolBroken``, ``NotWritable``, ``DiskFull``.
    """
    reader = _READERS.get(engine)
    if reader is None or not toolbox.installed().get(reader.tool, False):
        return None
    place = toolbox.home / _FOLDER / f"{reader.tool}-{_key(toolbox, reader)}.json"
    said = _remembered(place)
    if said is None:
        said = _ask(toolbox, reader, place, emit)
    if reader.platforms and said["platform"] not in reader.platforms:
        return None
    return _record(engine, said, place)


def _key(toolbox: Toolbox, reader: _Reader) -> str:
    """Changes with everything that is installed in the environment, and with the worker."""
    digest = hashlib.sha256(toolbox.identity(reader.tool).encode())
    digest.update(worker_path(reader.worker).read_bytes())
    return digest.hexdigest()[:12]


def _remembered(place: Path) -> dict[str, Any] | None:
    """The answer of an earlier time; a damaged file counts as none."""
    with contextlib.suppress(OSError, ValueError):
        said = json.loads(place.read_text(encoding="utf-8"))
        if isinstance(said, dict) and {"version", "platform", "flags", "methods"} <= said.keys():
            return said
    return None


def _ask(toolbox: Toolbox, reader: _Reader, place: Path, emit: Emit) -> dict[str, Any]:
    env = toolbox.ensure(reader.tool)
    emit("progress", what=f"asking {reader.tool} what it can do", done=0, total=None, unit="")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".asking-", dir=place.parent) as folder:
            job = Job(tool=reader.tool, worker=reader.worker, env=_QUIET, timeout_s=_TIMEOUT_S)
            log = place.with_suffix(".log")
            said = run_job(job, env, target=None, scratch=Path(folder), log=log, emit=emit).result
            said["read"] = datetime.now(UTC).date().isoformat()
            part = Path(folder) / "facts.json"
            part.write_text(json.dumps(said), encoding="utf-8")
            part.replace(place)
            log.unlink(missing_ok=True)
    except OSError as error:
        raise _not_kept(error, place) from error
    return said


def _not_kept(error: OSError, place: Path) -> NotWritable | DiskFull:
    kind = DiskFull if error.errno in (28, 122) else NotWritable  # no space, quota exceeded
    return kind(
        "what the engine said about itself cannot be kept",
        cause=f"{place}: {os.strerror(error.errno) if error.errno else error}",
        fix="free some space or correct the permissions, or choose another folder with MODEL_OPTIMIZER_HOME",
    )


def _record(engine: str, said: dict[str, Any], place: Path) -> InstalledEngine:
    """The worker's answer as a record. Raises ``JobFailed`` where it is not of the form that was agreed."""
    try:
        methods = said["methods"]
        flags = tuple(_flag(option) for option in said["flags"])
        return InstalledEngine(
            engine=engine,
            version=said["version"],
            build=said["build"],
            platform=said["platform"],
            methods={name: method["min_capability"] for name, method in methods.items()},
            activation_dtypes={
                name: tuple(method["activation_dtypes"])
                for name, method in methods.items()
                if method["activation_dtypes"] is not None
            },
            variants=said["variants"],
            deprecated_methods=tuple(said["deprecated_methods"]),
            flags=tuple(name for option in said["flags"] for name in (option["flag"], *option["aliases"])),
            flag_facts=flags,
            kv_cache_dtypes=tuple(said["kv_cache_dtypes"]),
            dtypes=tuple(said["dtypes"]),
            architectures=tuple(said["architectures"]),
            read=said["read"],
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise JobFailed(
            f"{engine} said something about itself that cannot be read",
            cause=f"{type(error).__name__}: {error}",
            fix=f"delete {place} and try again; if it happens again, report it with that file",
        ) from error


def _flag(option: dict[str, Any]) -> FlagFact:
    return FlagFact(
        flag=option["flag"],
        field=option["field"],
        default=option["default"],
        values=None if option["choices"] is None else tuple(option["choices"]),
        alias=" / ".join(option["aliases"]) or None,
    )
