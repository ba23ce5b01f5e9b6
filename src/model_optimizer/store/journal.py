"""A run's folder: the request, an append-only stream of events, and the manifest, replaced as a whole."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime
from pathlib import Path

from model_optimizer.errors import UnknownName
from model_optimizer.records.run import RunManifest, RunSpec
from model_optimizer.store.objects import append_line, make_folder, write_atomically


class Journal:
    """Writes one run folder. It points at store keys and can be deleted freely."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self._lock = threading.Lock()
        make_folder(self.logs)

    def event(self, kind: str, **fields: object) -> None:
        """Append one event with its time."""
        with self._lock:
            append_line(self.folder / "events.jsonl", {"at": now(), "kind": kind, **fields})

    def save(self, manifest: RunManifest) -> None:
        """Replace the manifest."""
        write_atomically(self.folder / "manifest.json", manifest.to_json())


def now() -> str:
    """This moment in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_folder(runs: Path, spec: RunSpec) -> Path:
    """The folder of this request: the one it had before (running again is resuming), else a new one with today's date.

    Named ``<date>-<model>-<6 digits of the request's digest>``.
    """
    model = re.sub(r"[^A-Za-z0-9.]+", "-", Path(spec.model).name or spec.model).strip("-")[:40].lower()
    suffix = f"-{model}-{spec.model_copy(update={'origin': {}}).digest()[:6]}"
    make_folder(runs)
    earlier = sorted(path for path in runs.iterdir() if path.name.endswith(suffix) and path.is_dir())
    return earlier[-1] if earlier else runs / f"{datetime.now(UTC):%Y%m%d}{suffix}"


def find_run(runs: Path, name: str | None) -> Path:
    """The run folder of this name (or any unique part of it, or a path); without a name, the latest.

    Raises ``UnknownName`` listing what there is.
    """
    if name and (Path(name) / "manifest.json").is_file():
        return Path(name)
    known = [p for p in runs.iterdir() if (p / "manifest.json").is_file()] if runs.is_dir() else []
    known.sort(key=lambda p: (p / "manifest.json").stat().st_mtime)
    matches = [p for p in known if name is None or name in p.name]
    if matches and (name is None or len(matches) == 1):
        return matches[-1]
    listing = ", ".join(p.name for p in known) or "none yet"
    raise UnknownName(
        f"no run called {name!r}"
        if name and not matches
        else "no run found"
        if not matches
        else f"{name!r} is not unique",
        cause=f"runs in {runs}: {listing}",
        fix="name one of them, or start one with: model-optimize run MODEL",
    )


def read_manifest(folder: Path) -> RunManifest:
    """The manifest of a run folder."""
    return RunManifest.from_json((folder / "manifest.json").read_bytes())
