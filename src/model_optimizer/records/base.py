"""The base of all records: frozen, closed, with one canonical JSON and one digest."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol, Self

import orjson
from pydantic import BaseModel, ConfigDict


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


class Record(BaseModel):
    """A frozen value. Sequences are tuples; an optional field means *unknown*, never zero."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the canonical JSON, fields at their default left out.

        Leaving defaults out keeps digests stable when a record gains an optional field. The price: changing the
        value of a default must raise the ``VERSION`` of the stages that read it.
        """
        return hashlib.sha256(canonical_json(self.model_dump(mode="json", exclude_defaults=True))).hexdigest()

    def to_json(self) -> bytes:
        """The whole record as JSON, for files and ``--json``."""
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Inverse of ``to_json``."""
        return cls.model_validate_json(data)


class Emit(Protocol):
    """Where progress goes: an event name and its fields. The journal and the terminal are two readers of one stream."""

    def __call__(self, kind: str, **fields: object) -> None:
        """Report that something happened. Kinds in use: ``progress`` (what, done, total, unit), ``note`` (text)."""
        ...
