"""JSON files of a checkpoint, and access to their fields with types checked: errors name file and key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.health import FETCH_AGAIN, foreign_file, not_regular, unreadable

MAX_JSON_BYTES = 256 << 20
_MAX_NUMBER = 1 << 48


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file. Raises CheckpointInvalid: unreadable, too long, no JSON, or no object."""
    data = read_small_file(path)
    try:
        value = _parse(data)
    except (ValueError, RecursionError) as caught:
        foreign = foreign_file(path.name, data[:512], len(data))
        reason = foreign.message if foreign else f"{path.name} is not valid JSON: {caught}"
        fix = foreign.fix if foreign and foreign.fix else FETCH_AGAIN
        raise CheckpointInvalid(f"{path.name} cannot be read", cause=reason, fix=fix, evidence=(str(path),)) from None
    if not isinstance(value, dict):
        raise CheckpointInvalid(
            f"{path.name} cannot be read",
            cause=f"it holds {_kind(value)}, an object {{…}} was expected",
            fix=FETCH_AGAIN,
            evidence=(str(path),),
        )
    return value


def read_small_file(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file that must not be large. Raises CheckpointInvalid."""
    try:
        status = path.stat()
        problem = not_regular(path, status.st_mode)
        if problem is None:
            if status.st_size <= limit:
                return path.read_bytes()
            cause, fix = f"it has {status.st_size} bytes, at most {limit} were expected", FETCH_AGAIN
        else:
            cause, fix = problem.message, problem.fix or FETCH_AGAIN
    except OSError as caught:
        problem = unreadable(path, caught)
        cause, fix = problem.message, problem.fix or FETCH_AGAIN
    raise CheckpointInvalid(f"{path.name} cannot be read", cause=cause, fix=fix, evidence=(str(path),))


def _parse(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # Python's json writes NaN and Infinity (time limits of state-space models); strict JSON has neither.
        if b"Infinity" in data or b"NaN" in data:
            value: object = json.loads(data)
            return value
        raise


def _kind(value: object) -> str:
    return {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}.get(
        type(value), "null"
    )


class Fields:
    """Typed access to a JSON object. Several names mean: the first that is present and not null."""

    def __init__(self, table: Mapping[str, object], where: str) -> None:
        self.table = table
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.table.get(name) is not None

    def _first(self, names: tuple[str, ...]) -> tuple[str, object]:
        for name in names:
            value = self.table.get(name)
            if value is not None:
                return name, value
        return names[0], None

    def number(self, *names: str) -> int | None:
        """A whole number; of a list (one value a layer) the greatest."""
        name, value = self._first(names)
        if isinstance(value, list) and value and all(type(v) is int for v in value):
            value = max(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        if type(value) is not int or abs(value) > _MAX_NUMBER:
            raise self.wrong(name, value, "a whole number")
        return value

    def size(self, *names: str) -> int | None:
        """A whole number above zero."""
        name, _ = self._first(names)
        value = self.number(*names)
        if value is not None and value <= 0:
            raise self.wrong(name, value, "a number above zero")
        return value

    def real(self, *names: str) -> float | None:
        """A number, not absurd. Anything else counts as absent: such fields only inform."""
        _, value = self._first(names)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER
        return float(value) if isinstance(value, int | float) and usable else None  # neither NaN nor infinite

    def flag(self, *names: str) -> bool | None:
        """True or false. Anything else counts as absent."""
        _, value = self._first(names)
        return value if isinstance(value, bool) else None

    def text(self, *names: str) -> str | None:
        """A text. Anything else counts as absent."""
        _, value = self._first(names)
        return value if isinstance(value, str) else None

    def inner(self, *names: str) -> Fields:
        """A nested object; empty where it is absent."""
        name, value = self._first(names)
        return Fields(value if isinstance(value, dict) else {}, f"{self.where}: {name}")

    def numbers(self, *names: str) -> tuple[int, ...]:
        """One number or a list of them; other values are left out."""
        _, value = self._first(names)
        return tuple(_whole(value if isinstance(value, list) else [value]))

    def wrong(self, name: str, value: object, expected: str) -> CheckpointInvalid:
        """The error for a field whose value makes no sense."""
        return CheckpointInvalid(
            f"{self.where} does not describe a usable model",
            cause=f"{name} is {str(value)[:60]!r}, {expected} was expected",
            fix="Take config.json from the model's source again; this one is damaged or was edited.",
        )


def _whole(values: list[object]) -> Iterator[int]:
    for value in values:
        if type(value) is int:
            yield value
