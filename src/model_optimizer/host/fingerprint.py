"""The identity of a checkpoint: SHA-256 over the content of all files that matter, each file hashed once.

SHA-256 runs at a fraction of a disk's speed, so the hash of a file is remembered by path, size, modification time and
inode, and files are hashed in parallel (hashlib lets go of the interpreter lock while it works).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import orjson

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.gguf_model import SPLIT_NAME
from model_optimizer.host.health import FETCH_AGAIN, unreadable
from model_optimizer.records.base import Emit

_ENDINGS = (".safetensors", ".gguf", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py")
_IGNORED = ("consolidated", "license", "notice", "readme", "use_policy", "trainer_state", "all_results", "eval_results")
_CHUNK = 4 << 20
_REPORT_EVERY_S = 0.2
_MAX_REMEMBERED = 10_000
# A file written to again within the clock tick of its last modification keeps its time: too young to be remembered.
_SETTLED_S = 2.0


class _Seen(NamedTuple):
    """What a file must still be for its hash to be believed."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Seen:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class _Progress:
    """Bytes done, counted by all threads, reported by the one that waits."""

    def __init__(self, total: int, emit: Emit | None) -> None:
        self._lock = threading.Lock()
        self._done = 0
        self._total = total
        self._emit = emit
        self.cancelled = threading.Event()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count

    def report(self) -> None:
        if self._emit is not None and self._total:
            self._emit("progress", what="fingerprint of the checkpoint", done=self._done, total=self._total, unit="B")


def files_that_matter(path: Path) -> dict[str, Path]:
    """Relative name → file: weights, configuration, tokenizer, templates, code. A single file has the name ``.``."""
    if not path.is_dir():
        match = SPLIT_NAME.match(path.name)
        if match is None:
            return {".": path}
        pattern = f"{match['stem']}-*-of-{match['count']}.gguf"
        return {file.name: file for file in path.parent.glob(_literal(pattern, match["stem"]))}
    files = [*path.iterdir(), *path.glob("additional_chat_templates/*.jinja")]
    return {
        file.relative_to(path).as_posix(): file
        for file in files
        if file.name.endswith(_ENDINGS)
        and not file.name.startswith(".")
        and not file.name.lower().startswith(_IGNORED)
        and file.is_file()
    }


def _literal(pattern: str, stem: str) -> str:
    """The pattern with the wildcard characters of the stem taken literally."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in stem) + pattern[len(stem) :]


def fingerprint(path: Path, memo_path: Path, *, emit: Emit | None = None) -> str:
    """SHA-256 (64 hex digits) over the sorted relative names and file hashes: equal content, equal fingerprint.

    ``memo_path``: JSON file with the hashes of files seen before; it is made where it is missing, replaced atomically,
    and a damaged one is ignored. Progress goes to ``emit`` (kind ``progress``, bytes). Raises CheckpointInvalid where a
    file cannot be read or changes meanwhile.
    """
    try:
        files = files_that_matter(path)
        seen = {name: _Seen.of(file.stat()) for name, file in files.items()}
    except OSError as caught:
        raise _unreadable(Path(caught.filename or path), caught) from None
    if not files:
        raise CheckpointInvalid(
            f"{path} holds no files of a model", cause="nothing to fingerprint", fix="Check the path."
        )
    memo = _load(memo_path)
    hashes: dict[str, str] = {}
    for name, file in files.items():
        known = _remembered(memo, file, seen[name])
        if known is not None:
            hashes[name] = known
    new = [name for name in files if name not in hashes]
    hashes.update(_hash_all([files[name] for name in new], new, seen, emit))
    _remember(memo_path, {_key(files[name]): (seen[name], hashes[name]) for name in new}, emit)
    total = hashlib.sha256()
    for name in sorted(hashes):
        total.update(f"{hashes[name]}  {name}\n".encode())
    return total.hexdigest()


def _hash_all(
    files: Sequence[Path], names: Sequence[str], seen: Mapping[str, _Seen], emit: Emit | None
) -> dict[str, str]:
    if not files:
        return {}
    progress = _Progress(sum(seen[name].size for name in names), emit)
    workers = min(len(files), os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(workers, thread_name_prefix="fingerprint") as pool:
        # Large files first: no thread is left alone with one at the end.
        order = sorted(range(len(files)), key=lambda i: -seen[names[i]].size)
        tasks = {names[i]: pool.submit(_hash_file, files[i], seen[names[i]], progress) for i in order}
        try:
            pending = set(tasks.values())
            while pending:
                done, pending = wait(pending, timeout=_REPORT_EVERY_S, return_when=FIRST_EXCEPTION)
                progress.report()
                for task in done:
                    task.result()  # raises what the thread raised
        except BaseException:
            progress.cancelled.set()
            raise
    return {name: task.result() for name, task in tasks.items()}


def _hash_file(path: Path, expected: _Seen, progress: _Progress) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                if progress.cancelled.is_set():
                    return ""  # another file failed; nobody will look at this
                digest.update(buffer[:count])
                progress.add(count)
            after = _Seen.of(os.fstat(file.fileno()))
    except OSError as caught:
        raise _unreadable(path, caught) from None
    if after != expected:
        raise CheckpointInvalid(
            f"{path.name} changed while it was read",
            cause="another program is writing it (a download still running?)",
            fix="Wait until it is done, then run the same command again.",
            evidence=(str(path),),
        )
    return digest.hexdigest()


def _unreadable(path: Path, caught: OSError) -> CheckpointInvalid:
    problem = unreadable(path, caught)
    return CheckpointInvalid(
        f"{path.name} cannot be read", cause=problem.message, fix=problem.fix or FETCH_AGAIN, evidence=(str(path),)
    )


def _key(file: Path) -> str:
    return str(file.resolve())


def _load(memo_path: Path) -> dict[str, object]:
    """The memo; empty where it is missing or damaged: it only saves time."""
    try:
        value = orjson.loads(memo_path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    files = value.get("files") if isinstance(value, dict) else None
    return files if isinstance(files, dict) else {}


def _remembered(memo: Mapping[str, object], file: Path, seen: _Seen) -> str | None:
    entry = memo.get(_key(file))
    if not isinstance(entry, list) or len(entry) != 4 or entry[:3] != list(seen):
        return None
    value = entry[3]
    return value if isinstance(value, str) and len(value) == 64 else None


def _remember(memo_path: Path, new: Mapping[str, tuple[_Seen, str]], emit: Emit | None) -> None:
    newest = (time.time() - _SETTLED_S) * 1e9
    settled: dict[str, object] = {key: [*seen, digest] for key, (seen, digest) in new.items() if seen.mtime_ns < newest}
    if not settled:
        return
    merged = _load(memo_path)  # again: another process may have written meanwhile
    for key in settled:
        merged.pop(key, None)
    merged |= settled
    kept = dict(list(merged.items())[-_MAX_REMEMBERED:])
    try:
        memo_path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=memo_path.name, dir=memo_path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(orjson.dumps({"version": 1, "files": kept}))
            Path(temporary).replace(memo_path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as caught:
        if emit is not None:
            emit("note", text=f"file hashes could not be remembered in {memo_path}: {caught.strerror or caught}")
