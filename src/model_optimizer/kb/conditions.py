"""The conditions of a host that the doctor knows: one YAML entry each, in ``data/doctor``."""

from __future__ import annotations

from functools import cache

from model_optimizer.kb.load import data_folder, mapping, read_yaml, to_record, wrong
from model_optimizer.records.doctor import Condition


@cache
def conditions() -> dict[str, Condition]:
    """Every condition by its id, in the order of the files. Raises ``SpecInvalid`` on a bad entry."""
    found: dict[str, Condition] = {}
    folder = data_folder() / "doctor"
    for file in sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name):
        for index, entry in enumerate(mapping(read_yaml(file), file, "conditions")):
            condition = to_record(Condition, entry, file, ("conditions", index))
            if condition.id in found:
                raise wrong(file, ("conditions", index), f"condition {condition.id!r} is there twice")
            found[condition.id] = condition
    return found
