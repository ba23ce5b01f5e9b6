"""The folder of the tool environments: locks, leftovers, sizes, and asking an interpreter what is in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from model_optimizer.errors import DiskFull, NotWritable, ToolBroken, ToolMissing
from model_optimizer.host.causes import describe_status, first_cause
from model_optimizer.host.process import run
from model_optimizer.units import format_bytes

BUILDING = ".building-"
REMOVED = ".removed"
REPAIR = "model-optimize tools remove {name} && model-optimize tools install {name}"
_CHECK_TIMEOUT_S = 600.0
_ANSWER = "@distributions "
_DESCRIBE = f"""
import importlib.metadata, json, re
named = ((d.metadata["Name"] or "", d.version) for d in importlib.metadata.distributions())
found = {{re.sub("[-_.]+", "-", name).lower(): version for name, version in named}}
print("\\n{_ANSWER}" + json.dumps(found))
"""
_SPARE_BYTES = 200 * 10**6


@contextlib.contextmanager
def locked(home: Path, key: str, *, waiting: Callable[[], None]) -> Iterator[None]:
    """One process at a time for each environment; the kernel releases the lock of a process that dies.

    ``waiting`` is called once where another one holds it. Raises ``NotWritable``.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        file = (home / f".lock-{key}").open("w")
    except OSError as error:
        raise NotWritable(
            f"the folder of the tool environments cannot be written: {home}",
            cause=error.strerror or str(error),
            fix="check its permissions, or choose another place with MODEL_OPTIMIZER_HOME",
        ) from error
    with file:
        if not _try_lock(file.fileno()):
            waiting()
            while not _try_lock(file.fileno()):
                time.sleep(0.2)
        yield


def sweep(home: Path, own: str) -> None:
    """Delete what killed builders and removers have left. ``own`` is the key whose lock the caller holds."""
    for leftover in home.glob(f"{BUILDING}*"):
        key = leftover.name.removeprefix(BUILDING).removesuffix(".txt").removesuffix(REMOVED)
        with (home / f".lock-{key}").open("w") as file:
            if key == own or _try_lock(file.fileno()):
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink(missing_ok=True)


def size_bytes(folder: Path) -> int:
    """What the files of a folder take, links not followed."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{root}/{name}").st_size
    return total


def describe(name: str, python: Path, check: str, *, log: Path | None = None) -> dict[str, str]:
    """Run ``check`` with that interpreter; the distributions it sees, with their versions.

    Raises ``ToolBroken`` with the first cause where the check raises, crashes or hangs.
    """
    done = run([str(python), "-c", check + _DESCRIBE], timeout_s=_CHECK_TIMEOUT_S, log=log)
    if done.returncode == 0:
        for line in reversed(done.tail):
            if line.startswith(_ANSWER):
                return {str(key): str(value) for key, value in json.loads(line.removeprefix(_ANSWER)).items()}
    raise ToolBroken(
        f"{name} does not work in its environment",
        cause=f"{first_cause(done.tail) or 'it printed nothing'} ({describe_status(done.returncode)})",
        fix=REPAIR.format(name=name),
        evidence=[line for line in done.tail if line.strip()][-8:],
        log=str(log) if log else None,
    )


def require_platform(name: str) -> None:
    """Raises ``ToolMissing`` where the locks were not made for this system or Python."""
    here = f"{platform.system()} {platform.machine()}, Python {sys.version_info.major}.{sys.version_info.minor}"
    known_system = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    if not known_system or not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise ToolMissing(
            f"no environment of {name} can be built on this machine",
            cause=f"the locked environments are for Linux x86_64 with Python 3.11 to 3.13; this is {here}",
            fix="install it yourself and name its interpreter in the request file: "
            f"tools: {{{name}: {{python: PATH}}}}",
        )


def require_space(name: str, needed_bytes: int, home: Path) -> None:
    """Raises ``DiskFull``, with the numbers, before a build that would not fit."""
    free = shutil.disk_usage(home).free
    if free < needed_bytes + _SPARE_BYTES:
        raise DiskFull(
            f"not enough free disk space to install {name}",
            cause=f"it takes about {format_bytes(needed_bytes)}; {format_bytes(free)} are free at {home}",
            fix="free some space (model-optimize tools list shows what each tool takes), "
            "or choose another disk with MODEL_OPTIMIZER_HOME",
        )


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
