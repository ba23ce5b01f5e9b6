"""Engine facts: found by name, flags by version, names that do not exist."""

import pytest

from model_optimizer.errors import UnknownName
from model_optimizer.kb.engines import engine, engines, flag_in
from model_optimizer.kb.versions import at_least, version_key, within
from model_optimizer.records.knowledge import FlagFact, MissingName


def test_the_engines():
    assert {facts.id for facts in engines()} == {
        "vllm", "vllm-cpu", "sglang", "tensorrt-llm", "tensorrt", "tensorrt-rtx", "onnxruntime", "onnxruntime-genai",
        "llama.cpp", "openvino-genai", "transformers",
    }  # fmt: skip
    for facts in engines():
        assert facts.sources and facts.platforms and facts.checkpoints and facts.os
        assert facts.current_version == facts.current_version.strip()
        assert len({flag.flag for flag in facts.flags}) == len(facts.flags)


@pytest.mark.parametrize(
    ("name", "found"),
    [("vLLM", "vllm"), ("llama_cpp", "llama.cpp"), ("llamacpp", "llama.cpp"), ("TensorRT-LLM", "tensorrt-llm"),
     ("tensorrt_llm", "tensorrt-llm"), ("SGLang", "sglang")],
)  # fmt: skip
def test_by_name(name, found):
    assert engine(name).id == found


def test_unknown_engine():
    with pytest.raises(UnknownName) as caught:
        engine("vlmm")
    assert "vllm" in caught.value.fix


@pytest.mark.parametrize(
    ("flag", "version", "exists"),
    [
        ("--max-num-seqs", None, True),
        ("--max-num-queued-reqs", "0.24.0", False),
        ("--max-num-queued-reqs", "0.33.0", True),
        ("--calculate-kv-scales", "0.27.1", True),
        ("--calculate-kv-scales", "0.33.0", False),
        ("--swap-space", "0.17.1", True),
        ("--swap-space", "0.33.0", False),
        ("--log-level", "0.27.1", False),
        ("--optimization-level", "0.33.0", True),
        ("--device-memory-utilization", "0.33.0", True),  # an alias
    ],
)
def test_flags_by_version(flag, version, exists):
    found = flag_in(engine("vllm"), flag, version)
    assert isinstance(found, FlagFact if exists else MissingName)


def test_names_that_never_existed_say_what_to_use():
    found = flag_in(engine("vllm"), "vllm-benchmark")
    assert isinstance(found, MissingName) and found.instead == "vllm bench serve"
    assert flag_in(engine("vllm"), "--no-such-flag") is None


def test_gates_have_statuses_that_may_refuse():
    for facts in engines():
        for gate in (facts.min_compute_capability, facts.shipped_capabilities, facts.min_driver_linux):
            assert gate is None or gate.may_refuse


def test_memory_shares_differ():
    shares = {facts.id: facts.memory_share for facts in engines()}
    assert (shares["vllm"], shares["sglang"], shares["tensorrt-llm"]) == (
        "total",
        "weights_and_kv",
        "free_after_weights",
    )


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.9.2", "0.12.0"), ("12.9", "12.10"), ("12.2", "12.2u1"), ("12.2u2", "12.3"), ("525.85.12", "525.89.02"),
     ("0.27.1", "0.32.0"), ("8.9", "10.0"), ("1", "1.0.1")],
)  # fmt: skip
def test_versions_are_numbers_in_order(older, newer):
    assert version_key(older) < version_key(newer)
    assert at_least(newer, older) and not at_least(older, newer)


def test_equal_versions_and_ranges():
    assert version_key("1.0") == version_key("1") == version_key("v1.0.0+cu130")
    assert within("0.32.0", "0.32.0", "0.33.0") and not within("0.33.0", "0.32.0", "0.33.0")
    assert within("5", None, None)
    with pytest.raises(ValueError, match="not a version"):
        version_key("latest")
