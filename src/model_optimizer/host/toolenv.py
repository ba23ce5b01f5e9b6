"""The tools' own environments: tools that cannot share a Python need not, and the core stays free of torch.

A tool runs in what the user configured (``tools: {vllm: {python: ~/vllm/bin/python}}``), else in an environment
built here on demand. It is named by the hash of its lock and Python version, built under a temporary name, checked, and
published by one rename, so that it exists whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import HostError, RequestError, ToolBroken, ToolMissing
from model_optimizer.host.probe import detect_gpus
from model_optimizer.host.toolbuild import build
from model_optimizer.host.toolplace import (
    BUILDING,
    REMOVED,
    REPAIR,
    describe,
    locked,
    require_platform,
    require_space,
    size_bytes,
    sweep,
)
from model_optimizer.host.toolspec import Build, ToolSpec, tool_specs
from model_optimizer.kb.names import unknown
from model_optimizer.records.base import Emit, Record
from model_optimizer.records.run import ToolConfig
from model_optimizer.units import format_bytes, format_seconds

_RECORD = "tool.json"
_RECIPE = 1
"""Raised when the same lock would be installed differently."""


class ToolEnv(NamedTuple):
    """Where a tool runs. ``digest`` identifies all that is installed; it and ``version`` go into keys."""

    name: str
    python: Path
    version: str
    digest: str
    size_bytes: int


class ToolStatus(Record):
    """A tool for people: is it there, what will it cost to have it. ``configured``: the user named the interpreter."""

    name: str
    purpose: str
    platform: str
    installed: bool
    configured: bool = False
    version: str | None = None
    python: str | None = None
    size_bytes: int | None = None
    download_bytes: int
    installed_bytes: int
    build_time_s: float


class Toolbox:
    """All tools of one home. ``platform`` (``cpu`` or ``cuda``) is found out when it is first needed.

    ``ask`` is called before an environment is built that nobody asked for by name; ``False`` means no.
    """

    def __init__(
        self,
        home: Path,
        *,
        overrides: Mapping[str, ToolConfig],
        emit: Emit,
        platform: str | None = None,
        ask: Callable[[ToolStatus], bool] | None = None,
        specs: Mapping[str, ToolSpec] | None = None,
    ) -> None:
        self.home = home
        self._overrides = overrides
        self._emit = emit
        self._platform = platform
        self._ask = ask
        self._specs = tool_specs() if specs is None else specs
        self._described: dict[Path, dict[str, str]] = {}
        for name in overrides:
            self._spec(name)

    def ensure(self, name: str) -> ToolEnv:
        """The tool's environment, built now where it is missing.

        Raises ``UnknownName``, ``ToolMissing`` (no build for this machine, or the user said no), ``ToolBroken``,
        ``NetworkUnavailable``, ``DiskFull``, ``NotWritable``.
        """
        found = self._find(name)
        if found is not None:
            return found
        status = self._status(self._spec(name), None)
        if self._ask is not None and not self._ask(status):
            raise ToolMissing(
                f"{name} is not installed",
                cause="its environment would have to be built, which was declined",
                fix=f"model-optimize tools install {name} "
                f"(about {format_bytes(status.download_bytes)} to fetch, {format_seconds(status.build_time_s)})",
            )
        return self.install(name)

    def install(self, name: str) -> ToolEnv:
        """Build the tool's environment; one that exists is kept. Another process that builds it is waited for."""
        spec = self._spec(name)
        found = self._find(name)
        if found is not None:
            return found
        require_platform(name)
        _, build_ = spec.build_for(self.platform)
        place = self.home / self._folder_name(spec)
        with self._lock(place.name, name):
            sweep(self.home, place.name)
            if place.exists():  # another process has built it while we waited
                return _read(name, place)
            return self._build(spec, build_, place)

    def list(self) -> tuple[ToolStatus, ...]:
        """Every tool, installed or not. Nothing is started: whether one works is seen by ``verify``."""
        statuses = []
        for name, spec in self._specs.items():
            env = None
            with contextlib.suppress(HostError):  # the configured interpreter is not there: not installed
                env = self._peek(name)
            statuses.append(self._status(spec, env))
        return tuple(statuses)

    def installed(self) -> dict[str, bool]:
        """For each tool, whether it can be used without building anything."""
        return {status.name: status.installed for status in self.list()}

    def verify(self, name: str) -> ToolStatus:
        """Health check: import, version, one small computation. Raises ``ToolMissing`` or ``ToolBroken``."""
        spec = self._spec(name)
        env = self._find(name)
        if env is None:
            raise ToolMissing(
                f"{name} is not installed",
                cause=f"no environment of it below {self.home}",
                fix=f"model-optimize tools install {name}",
            )
        describe(name, env.python, spec.check)
        return self._status(spec, env)

    def remove(self, name: str) -> int:
        """Delete every environment of the tool that was built here, older versions too; the bytes that were freed."""
        self._spec(name)
        if name in self._overrides and self._overrides[name].python:
            raise RequestError(
                f"{name} was not built here",
                cause=f"the request names its interpreter: {self._overrides[name].python}",
                fix="delete that entry under tools: in the request file",
            )
        freed = 0
        for place in sorted(self.home.glob(f"{name}-*")) if self.home.is_dir() else []:
            if re.fullmatch(re.escape(name) + "-[0-9a-f]{12}", place.name):
                with self._lock(place.name, name):
                    freed += size_bytes(place)
                    doomed = place.with_name(f"{BUILDING}{place.name}{REMOVED}")
                    place.rename(doomed)  # first the name, then the files: nobody finds half an environment
                    shutil.rmtree(doomed)
        return freed

    def identity(self, name: str) -> str:
        """What results of the tool depend on: version and everything installed. Known before anything is built."""
        spec = self._spec(name)
        env = self._peek(name)
        if env is not None:
            return f"{env.version} {env.digest[:12]}"
        return f"{self._locked_version(spec)} {self._digest(spec)[:12]}"

    @property
    def platform(self) -> str:
        """``cuda`` where the NVIDIA driver shows a GPU, else ``cpu``."""
        if self._platform is None:
            self._platform = "cuda" if detect_gpus() else "cpu"
        return self._platform

    def _spec(self, name: str) -> ToolSpec:
        if name not in self._specs:
            raise unknown("tool", name, tuple(self._specs), listed_by="All of them: model-optimize tools list")
        return self._specs[name]

    def _find(self, name: str) -> ToolEnv | None:
        """The environment, or ``None``. Raises ``ToolBroken`` where it is there but its interpreter is not."""
        env = self._peek(name)
        if env is not None and not os.access(env.python, os.X_OK):
            raise ToolBroken(
                f"the environment of {name} has lost its Python",
                cause=f"{env.python} leads to an interpreter that is no longer there",
                fix=REPAIR.format(name=name),
            )
        return env

    def _peek(self, name: str) -> ToolEnv | None:
        spec = self._spec(name)
        config = self._overrides.get(name)
        if config is not None and config.python:
            return self._configured(spec, Path(config.python).expanduser().absolute())
        place = self.home / self._folder_name(spec)
        return _read(name, place) if place.is_dir() else None

    def _configured(self, spec: ToolSpec, python: Path) -> ToolEnv:
        """The interpreter that the user named: asked once for what is installed in it."""
        if not os.access(python, os.X_OK):
            raise ToolMissing(
                f"the interpreter configured for {spec.name} is not there",
                cause=f"{python} does not exist or may not be executed",
                fix=f"correct it: tools: {{{spec.name}: {{python: PATH}}}} in the request file",
            )
        if python not in self._described:
            self._described[python] = describe(spec.name, python, "")
        distributions = self._described[python]
        text = "\n".join(f"{name}=={version}" for name, version in sorted(distributions.items()))
        digest = hashlib.sha256(text.encode()).hexdigest()
        return ToolEnv(spec.name, python, _version(spec, distributions), digest, 0)

    def _build(self, spec: ToolSpec, build_: Build, place: Path) -> ToolEnv:
        require_space(spec.name, build_.installed, self.home)
        started = time.monotonic()
        folder = self.home / f"{BUILDING}{place.name}"
        log = self.home / f"{place.name}.log"
        log.unlink(missing_ok=True)
        try:
            build(spec.name, build_.requirements(), folder, log=log, emit=self._emit)
            self._emit("progress", what=f"install {spec.name}: check", done=0, total=None, unit="")
            distributions = describe(spec.name, folder / "bin" / "python", spec.check, log=log)
            record = {
                "version": _version(spec, distributions),
                "digest": self._digest(spec),
                "size_bytes": size_bytes(folder),
                "build_time_s": round(time.monotonic() - started, 1),
            }
            (folder / _RECORD).write_text(json.dumps(record))
            folder.rename(place)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        env = _read(spec.name, place)
        took = format_seconds(time.monotonic() - started)
        self._emit("note", text=f"installed {spec.name} {env.version}: {format_bytes(env.size_bytes)} in {took}")
        return env

    def _status(self, spec: ToolSpec, env: ToolEnv | None) -> ToolStatus:
        platform, build_ = spec.build_for(self.platform)
        return ToolStatus(
            name=spec.name,
            purpose=spec.purpose,
            platform=platform,
            installed=env is not None,
            configured=spec.name in self._overrides,
            version=env.version if env else self._locked_version(spec),
            python=str(env.python) if env else None,
            size_bytes=env.size_bytes if env else None,
            download_bytes=build_.download,
            installed_bytes=build_.installed,
            build_time_s=build_.build_time,
        )

    def _digest(self, spec: ToolSpec) -> str:
        version = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
        lock = spec.build_for(self.platform)[1].requirements()
        return hashlib.sha256("\n".join([str(_RECIPE), version, *lock]).encode()).hexdigest()

    def _folder_name(self, spec: ToolSpec) -> str:
        return f"{spec.name}-{self._digest(spec)[:12]}"

    def _locked_version(self, spec: ToolSpec) -> str:
        lines = (line.split(";")[0].strip() for line in spec.build_for(self.platform)[1].requirements())
        return _version(spec, dict(line.split("==", 1) for line in lines))

    def _lock(self, key: str, name: str) -> contextlib.AbstractContextManager[None]:
        text = f"another process is working on {name}; waiting for it"
        return locked(self.home, key, waiting=lambda: self._emit("note", text=text))


def _read(name: str, place: Path) -> ToolEnv:
    """The environment in ``place``. Raises ``ToolBroken`` where its record is missing or damaged."""
    try:
        record = json.loads((place / _RECORD).read_text())
        return ToolEnv(name, place / "bin" / "python", record["version"], record["digest"], record["size_bytes"])
    except (OSError, ValueError, KeyError) as error:
        raise ToolBroken(
            f"the environment of {name} is damaged",
            cause=f"{place / _RECORD}: {error}",
            fix=REPAIR.format(name=name),
        ) from error


def _version(spec: ToolSpec, distributions: Mapping[str, str]) -> str:
    """Raises ``ToolBroken`` where none of the tool's distributions is there."""
    for package in spec.packages:
        if package in distributions:
            return distributions[package]
    raise ToolBroken(
        f"{spec.name} is not in its environment",
        cause=f"no distribution named {' or '.join(spec.packages)} is installed there",
        fix=f"install it there, or delete the entry tools: {{{spec.name}: ...}} from the request file: "
        "Model-Optimizer then builds an environment of its own",
    )
