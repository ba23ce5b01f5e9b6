"""Facts are YAML; this turns them into frozen records, and names file and line of everything that is wrong.

Reading is fast because it parses once with libyaml and looks for line numbers only when something is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from model_optimizer.errors import SpecInvalid
from model_optimizer.records.base import Record

R = TypeVar("R", bound=Record)
Loc = Sequence[str | int]

# libyaml is an order of magnitude faster; PyYAML built without it still reads the same files.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FIX = "correct the file at that line; docs/adding-a-gpu.md shows the shape of an entry"


@cache
def data_folder() -> Traversable:
    """The facts shipped with the package."""
    return files("model_optimizer.kb") / "data"


def read_yaml(file: Traversable) -> Any:
    """One YAML file as plain data. Raises ``SpecInvalid`` with the line where it is not YAML or cannot be read."""
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader either way
    except (OSError, UnicodeDecodeError) as error:
        raise SpecInvalid(
            f"{file} cannot be read", cause=str(error), fix="check the path and its permissions"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecInvalid(
            f"{file.name} is not valid YAML", cause=f"{file}:{line}: {error.problem}", fix=_FIX
        ) from error


def line_of(file: Traversable, loc: Loc) -> int:
    """The line (from 1) of the value at ``loc``, or of its nearest parent that is written in the file."""
    node: yaml.Node | None = yaml.compose(file.read_text(encoding="utf-8"), Loader=_LOADER)
    line = 1
    for step in loc:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == str(step)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        else:
            break
    return line


def wrong(file: Traversable, loc: Loc, what: str, *, fix: str = _FIX) -> SpecInvalid:
    """The error for a fact that is written wrongly; the caller raises it."""
    return SpecInvalid(f"{file.name}: {what}", cause=f"{file}:{line_of(file, loc)}: {what}", fix=fix)


def to_record(kind: type[R], value: Any, file: Traversable, at: Loc = ()) -> R:
    """Validate one entry found at ``at`` in ``file``.

    Raises ``SpecInvalid`` with the line of the first mistake, and all of them in ``evidence``.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = []
        for problem in error.errors(include_url=False):
            loc = (*at, *problem["loc"])
            message = problem["msg"].removeprefix("Value error, ")
            found.append(f"{file}:{line_of(file, loc)}: {'.'.join(map(str, loc))}: {message}")
        raise SpecInvalid(
            f"{file.name}: not a valid {kind.__name__}", cause=found[0], fix=_FIX, evidence=found
        ) from error


def mapping(value: Any, file: Traversable, key: str, at: Loc = ()) -> Any:
    """``value[key]`` where the file must have it. Raises ``SpecInvalid`` else."""
    if not isinstance(value, dict) or key not in value:
        raise wrong(file, at, f"{key!r} is missing")
    return value[key]
