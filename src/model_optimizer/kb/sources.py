"""Sources as files declare them, and what a value's status follows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, Field

from model_optimizer.kb.load import Loc, wrong
from model_optimizer.records.base import Record
from model_optimizer.records.knowledge import STATUS_ORDER, Basis, Source, Sourced, Status

T = TypeVar("T")
V = TypeVar("V")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Ids = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]
IsoDate = Annotated[str, BeforeValidator(str), Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class SourceEntry(Record):
    """A source as a file declares it, under its id."""

    title: str
    url: str | None = None
    read: IsoDate
    status: Status

    def named(self, source_id: str) -> Source:
        """The record, with its id."""
        return Source(id=source_id, title=self.title, url=self.url, read=self.read, status=self.status)


class Given(Record, Generic[T]):
    """A value as a file writes it: with the ids of its sources, and what must be known to judge it."""

    value: T
    source: Ids
    status: Status | None = None
    basis: Basis = "published"
    note: str = ""


def status_of(sources: Sequence[Source], basis: Basis = "published") -> Status:
    """A published value is as good as its best source; a derived one no better than its weakest."""
    statuses = sorted((source.status for source in sources), key=STATUS_ORDER.index)
    return statuses[-1] if basis == "derived" else statuses[0]


class Sources:
    """The sources of one file; remembers which were used, for the record that carries them."""

    def __init__(self, file: Traversable, declared: Mapping[str, SourceEntry]) -> None:
        self._file = file
        self._declared = declared
        self._used: dict[str, Source] = {}

    def find(self, ids: Sequence[str], at: Loc) -> list[Source]:
        """The sources with these ids. Raises ``SpecInvalid`` with the line that names an undeclared one."""
        found = []
        for source_id in ids:
            if source_id not in self._declared:
                raise wrong(self._file, at, f"source {source_id!r} is not declared in this file")
            found.append(self._used.setdefault(source_id, self._declared[source_id].named(source_id)))
        return found

    def sourced(self, given: Given[V], at: Loc) -> Sourced[V]:
        """The value with its status."""
        return self.value(given.value, given, at)

    def value(self, value: V, given: Given[Any], at: Loc) -> Sourced[V]:
        """Another value with the sources of ``given``: for tables whose source is written once."""
        status = given.status or status_of(self.find(given.source, at), given.basis)
        return Sourced(value=value, sources=given.source, status=status, basis=given.basis, note=given.note)

    def used(self) -> tuple[Source, ...]:
        """All sources referred to since the last call, in the order of first use."""
        used = tuple(self._used.values())
        self._used = {}
        return used
