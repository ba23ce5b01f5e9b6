"""The comparison of table and installation finds what it should; the real one: tests/e2e/test_installed_engines.py."""

from __future__ import annotations

import pytest

from model_optimizer.kb.engines import engine
from model_optimizer.kb.states import state
from model_optimizer.kb.versions import within
from model_optimizer.records.knowledge import FlagFact, InstalledEngine
from tests.kb.drift import VARIANTS, drift

VLLM = engine("vllm")
VERSION = "0.32.0"


@pytest.fixture
def installed() -> InstalledEngine:
    """An installation that agrees with the table in everything."""
    there = [fact for fact in VLLM.flags if within(VERSION, fact.since, fact.removed)]
    names = [name for fact in there for name in fact.flag.split(" / ")]
    plain = {
        fact.flag: None if isinstance(fact.default, str) and " " in fact.default else fact.default for fact in there
    }
    facts = tuple(
        FlagFact(flag=name, field=fact.field, default=plain[fact.flag], values=fact.values, alias=fact.alias)
        for fact in there
        for name in fact.flag.split(" / ")
    )
    floors = {"mxfp4": "8.0", "mxfp8": "8.0", "fp8": "7.5", "modelopt_fp4": "7.5", "gptq": "6.0", "awq": "7.5"}
    return InstalledEngine(
        engine="vllm",
        version=VERSION,
        methods={method: floors.get(method) for method in VLLM.quantization_methods},
        variants={"wna16": "7.5", "w8a8_int8": "7.5", "w4a8_fp8": "9.0"},
        flags=tuple(names),
        flag_facts=facts,
        kv_cache_dtypes=("auto", "fp8", "nvfp4"),
    )


def with_flag(installed: InstalledEngine, name: str, **changes: object) -> InstalledEngine:
    facts = tuple(f.model_copy(update=changes) if f.flag == name else f for f in installed.flag_facts)
    return installed.model_copy(update={"flag_facts": facts})


def test_no_drift_where_all_agree(installed):
    assert drift(VLLM, installed) == []


def test_a_flag_that_is_gone_and_one_that_came_back(installed):
    flags = (*(name for name in installed.flags if name != "--block-size"), "--swap-space")
    found = drift(VLLM, installed.model_copy(update={"flags": flags}))
    assert "--block-size: in the table, not in the installed 0.32.0" in found
    assert any(line.startswith("--swap-space: the table says since 0.4.2, removed 0.18.1") for line in found)
    assert any(line.startswith("--swap-space: said to be missing") for line in found)


@pytest.mark.parametrize(
    ("flag", "changes", "said"),
    [
        ("--gpu-memory-utilization", {"default": 0.9}, "default 0.92 in the table, 0.9 in the installation"),
        ("--stream-interval", {"default": 4}, "default 1 in the table, 4 in the installation"),
        ("--quantization", {"default": "fp8"}, "in the table, 'fp8' in the installation"),
        ("--scheduling-policy", {"field": "policy"}, "field scheduling_policy in the table, policy"),
        ("--gpu-memory-utilization", {"alias": None}, "alias --device-memory-utilization is not in the installation"),
        ("--performance-mode", {"values": ("balanced", "new")}, "only installed ['new']"),
    ],
)
def test_a_flag_that_changed(installed, flag, changes, said):
    (line,) = drift(VLLM, with_flag(installed, flag, **changes))
    assert line.startswith(flag)
    assert said in line


def test_methods_that_came_and_went(installed):
    methods = {name: floor for name, floor in installed.methods.items() if name != "mxfp4"} | {"brand_new": None}
    found = drift(VLLM, installed.model_copy(update={"methods": methods}))
    assert "method mxfp4: in the table, not in the installed 0.32.0" in found
    assert "method brand_new: installed, not in the table" in found
    assert any(line.startswith("scheme mxfp4: its method mxfp4 is not installed") for line in found)


def test_minimum_capabilities_in_both_directions(installed):
    assert "w4a8-fp8" in VARIANTS
    stricter = installed.model_copy(update={"variants": installed.variants | {"w4a8_fp8": "10.0"}})
    assert drift(VLLM, stricter) == ["w4a8-fp8 on 9.0: native in the rules, but the installation wants 10.0"]
    laxer = installed.model_copy(update={"methods": installed.methods | {"mxfp4": "7.5"}})
    assert drift(VLLM, laxer) == ["mxfp4 on 7.5: refused by the rules, but the installation is content with 7.5"]


def test_a_kv_cache_type_is_looked_for_among_kv_cache_types(installed):
    """``nvfp4`` is no quantization method: its presence is that of the value of --kv-cache-dtype."""
    assert state("kv-nvfp4", "vllm", "b200", installed=installed).state == "native"
    without = installed.model_copy(update={"kv_cache_dtypes": ("auto", "fp8")})
    refused = state("kv-nvfp4", "vllm", "b200", installed=without)
    assert (refused.state, refused.code) == ("impossible", "FORMAT_UNKNOWN")
    assert "KV cache of type 'nvfp4'" in refused.sentence
    assert any(line.startswith("scheme kv-nvfp4") for line in drift(VLLM, without))
