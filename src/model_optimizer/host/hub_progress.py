"""Progress of a download: huggingface_hub asks for a tqdm class, we give it one that reports instead of drawing."""

from __future__ import annotations

import threading
import time
from typing import Any

from model_optimizer.records.base import Emit

_EVERY_S = 0.2


class _Report:
    """Bytes received by all download threads, passed on a few times a second."""

    def __init__(self, what: str, total: int, emit: Emit) -> None:
        self._what = what
        self._total = total
        self._emit = emit
        self._done = 0
        self._lock = threading.Lock()
        self._last = 0.0

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._last < _EVERY_S and self._done < self._total:
                return
            self._last = now
            # Retries can count a byte twice; a bar beyond its end would look broken.
            self._emit("progress", what=self._what, done=min(self._done, self._total), total=self._total, unit="B")


def progress_class(what: str, total_bytes: int, emit: Emit) -> type[Any]:
    """A tqdm class whose byte counts go to ``emit`` as kind ``progress``; it draws nothing."""
    # Only needed with a download; part of huggingface_hub's own requirements.
    from tqdm.auto import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415

    report = _Report(what, total_bytes, emit)

    class Silent(tqdm):  # type: ignore[misc]
        """Counts bytes written. The bar of bytes on the wire, and the one of files, are left out."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs["disable"] = True
            self._counts = kwargs.get("unit") == "B" and not str(kwargs.get("desc", "")).startswith("Downloading bytes")
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            """Pass the increment on."""
            self.n += n or 0
            if self._counts and n:
                report.add(int(n))
            return None

    return Silent
