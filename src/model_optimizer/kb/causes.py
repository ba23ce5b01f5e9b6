"""The known causes of failures: one YAML entry each, in ``data/causes``."""

from __future__ import annotations

from functools import cache

from model_optimizer.kb.load import data_folder, mapping, read_yaml, to_record, wrong
from model_optimizer.records.diagnosis import Cause


@cache
def causes() -> tuple[Cause, ...]:
    """Every cause, harmless and inconclusive message, in the order of the files.

    Raises ``SpecInvalid`` on a bad entry.
    """
    found: dict[str, Cause] = {}
    folder = data_folder() / "causes"
    for file in sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name):
        for index, entry in enumerate(mapping(read_yaml(file), file, "causes")):
            cause = to_record(Cause, entry, file, ("causes", index))
            if cause.id in found:
                raise wrong(file, ("causes", index), f"cause {cause.id!r} is there twice")
            found[cause.id] = cause
    return tuple(found.values())
