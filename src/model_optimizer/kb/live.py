"""What engines' metrics pages say, and what the regimes of a live server mean: one YAML file an engine, one for all."""

from __future__ import annotations

from functools import cache

from model_optimizer.kb.load import data_folder, mapping, read_yaml, to_record, wrong
from model_optimizer.records.live import EngineMetrics, RegimeEntry


@cache
def engine_metrics() -> tuple[EngineMetrics, ...]:
    """Every engine whose metrics page is known. Raises ``SpecInvalid`` with file and line of what is wrong."""
    files = sorted((f for f in (data_folder() / "live").iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return tuple(to_record(EngineMetrics, read_yaml(file), file) for file in files)


@cache
def regimes() -> dict[str, RegimeEntry]:
    """The regimes by id. Raises ``SpecInvalid`` on a bad entry."""
    file = data_folder() / "regimes.yaml"
    found: dict[str, RegimeEntry] = {}
    for at, entry in enumerate(mapping(read_yaml(file), file, "regimes")):
        regime = to_record(RegimeEntry, entry, file, ("regimes", at))
        if regime.id in found:
            raise wrong(file, ("regimes", at), f"regime {regime.id!r} is there twice")
        found[regime.id] = regime
    return found
