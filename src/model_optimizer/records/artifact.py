"""A checkpoint in the store, made by a transform, or the user's own files."""

from __future__ import annotations

from model_optimizer.records.base import Record
from model_optimizer.records.model import Format


class Artifact(Record):
    """Files of a model in one format. Never an absolute path: ``key`` finds it in the store.

    ``key`` is ``None`` for the user's own checkpoint, which ``content_digest`` (its fingerprint) identifies.
    ``main`` is the file an engine is pointed at, relative to the artifact's folder; empty means the folder itself.
    """

    format: Format
    content_digest: str
    size_bytes: int
    key: str | None = None
    main: str = ""
    made_by: str = ""
