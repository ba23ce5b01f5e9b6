"""The store: results under their key, published by one rename, so that a reader sees all of a result or nothing.

objects/ab/abcd…/entry.json     the result, and the size of each file beside it
objects/ab/abcd…/files/         what the stage wrote
staging/abcd….<pid>.<random>/   work in progress; swept when its process is gone
locks/abcd….lock                held while a key is being made
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil

from model_optimizer.errors import DiskFull, LockHeld, NotWritable
from model_optimizer.records.base import Emit, Record


class Entry(Record):
    """A published result: the record as JSON, the files' sizes, and when it was made."""

    key: str
    stage: str
    subject: str
    made_at: str
    seconds: float
    result: dict[str, Any]
    files: dict[str, int] = {}


class Store:
    """Content-addressed results below ``home``. Safe against kills and against several processes at once."""

    def __init__(self, home: Path, emit: Emit) -> None:
        self.home = home
        self._emit = emit
        for part in ("objects", "staging", "locks"):
            make_folder(home / part)
        self._sweep()

    def folder(self, key: str) -> Path:
        """Where the entry of this key is, or would be."""
        return self.home / "objects" / key[:2] / key

    def files(self, key: str) -> Path:
        """The folder of files beside the entry."""
        return self.folder(key) / "files"

    def get(self, key: str) -> Entry | None:
        """The entry, or ``None``. A damaged one is set aside with a note, so that the step runs again."""
        folder = self.folder(key)
        try:
            entry = Entry.from_json((folder / "entry.json").read_bytes())
        except FileNotFoundError:
            if not folder.exists():
                return None
            self._set_aside(folder, "it has no entry.json")
            return None
        except ValueError as error:
            self._set_aside(folder, f"its entry.json cannot be read: {str(error).splitlines()[0]}")
            return None
        for name, size in entry.files.items():
            path = folder / "files" / name
            if not path.is_file() or path.stat().st_size != size:
                self._set_aside(folder, f"{name} is missing or not {size} bytes long")
                return None
        return entry

    def stage(self, key: str) -> Path:
        """A fresh folder to work in; ``publish`` moves it into place."""
        folder = self.home / "staging" / f"{key}.{os.getpid()}.{secrets.token_hex(4)}"
        make_folder(folder / "files")
        return folder

    def publish(self, staged: Path, entry: Entry) -> Entry:
        """Make the staged folder the entry of ``entry.key``: files synced, ``entry.json`` last, one rename."""
        files = {}
        try:
            for path in sorted((staged / "files").rglob("*")):
                if path.is_file():
                    _sync(path)
                    files[str(path.relative_to(staged / "files"))] = path.stat().st_size
            entry = entry.model_copy(update={"files": files})
            write_atomically(staged / "entry.json", entry.to_json())
            target = self.folder(entry.key)
            make_folder(target.parent)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(target)  # only --remeasure gets here with an entry in place
            staged.rename(target)
            _sync(target.parent)
        except OSError as error:
            raise storage_error(error, staged) from error
        return entry

    @contextlib.contextmanager
    def lock(self, key: str, *, wait_s: float = 24 * 3600.0) -> Iterator[None]:
        """Hold this key against other processes; waits for the holder, and says so once."""
        path = self.home / "locks" / f"{key}.lock"
        with path.open("a+") as handle:
            deadline = time.monotonic() + wait_s
            told = False
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        self._emit("note", text="another run is doing this step; waiting for its result")
                        told = True
                    if time.monotonic() > deadline:
                        raise LockHeld(
                            f"another process has held a step for over {wait_s:.0f} s",
                            cause=f"{path} is locked",
                            fix="wait for the other run, or stop it (model-optimize status shows runs)",
                        ) from None
                    time.sleep(0.1)
            try:
                yield
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)

    def _set_aside(self, folder: Path, why: str) -> None:
        target = self.home / "staging" / f"damaged-{folder.name[:12]}.{os.getpid()}.{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(target)
        self._emit("note", text=f"a stored result ({folder.name[:12]}) is damaged, the step runs again: {why}")

    def _sweep(self) -> None:
        """Remove what dead processes left in staging."""
        for path in (self.home / "staging").iterdir():
            pid = path.name.split(".")[-2] if path.name.count(".") >= 2 else ""
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Create a folder with its parents; ``NotWritable`` or ``DiskFull`` where that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, path) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a kill, sees the old content or the new, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise storage_error(error, path) from error


def append_line(path: Path, value: dict[str, object]) -> None:
    """Append one JSON line. A line is one write, so that lines of two processes never mix."""
    try:
        with path.open("ab") as handle:
            handle.write(orjson.dumps(value) + b"\n")
    except OSError as error:
        raise storage_error(error, path) from error


def storage_error(error: OSError, path: Path) -> NotWritable | DiskFull:
    """The clear form of an operating system's refusal to write."""
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return DiskFull(
            f"no space left while writing {path}",
            cause=str(error.strerror),
            fix="free space there, or point MODEL_OPTIMIZER_HOME at a larger disk; what is finished is kept",
        )
    return NotWritable(
        f"cannot write {path}",
        cause=str(error.strerror or error),
        fix="give yourself write access, or choose another place with MODEL_OPTIMIZER_HOME or --output-dir",
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
