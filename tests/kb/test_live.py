"""The texts of regimes and the names of metrics fit the engines' facts and each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from model_optimizer.diagnosis import regimes as deciders
from model_optimizer.diagnosis.regimes import conditions
from model_optimizer.kb.engines import engines
from model_optimizer.kb.live import engine_metrics, regimes
from model_optimizer.records.live import Regime, Window


def test_every_regime_has_its_texts():
    assert set(regimes()) == set(get_args(Regime))
    for entry in regimes().values():
        assert re.search(r"[一-鿿]", entry.title_zh)
        assert entry.means.endswith(".")


LEVERS = [
    (entry.id, engine, lever)
    for entry in regimes().values()
    for engine, levers in entry.levers.items()
    for lever in levers
]


@pytest.mark.parametrize(("regime", "engine", "lever"), LEVERS)
def test_levers_name_flags_of_the_engine_and_circumstances_that_exist(regime, engine, lever):
    known = {e.engine for e in engine_metrics()}
    assert engine in known | {"any"}
    text = Path(str(deciders.__file__)).read_text(encoding="utf-8")
    named = set(re.findall(r'^        "([a-z_]+)": ', text, re.MULTILINE))
    assert named >= conditions(Window(seconds=1, num_looks=2), (), frozenset())
    assert {*lever.when, *lever.unless} <= named
    if lever.flag is None:
        return
    facts = next(e for e in engines() if e.id == engine)
    written = " ".join(f"{flag.flag} {flag.alias or ''} {flag.note or ''}" for flag in facts.flags)
    assert re.search(rf"(?<![\w-]){re.escape(lever.flag)}(?![\w-])", written), f"{engine} has no {lever.flag}"


@pytest.mark.parametrize("engine", engine_metrics(), ids=lambda engine: engine.engine)
def test_metrics_begin_with_the_engines_marks(engine):
    names = [n for group in (engine.gauges, engine.counters, engine.histograms) for ns in group.values() for n in ns]
    names += [metric for metric, _ in engine.settings.values()] + ([engine.finished[0]] if engine.finished else [])
    assert names
    assert all(name.startswith(engine.marks) for name in names)
    if engine.engine != "tgi":  # not among the engines that are built for
        assert engine.engine in {e.id for e in engines()}
