"""Each rule decides its own example, has a source, and is reached."""

import pytest

from model_optimizer.kb.engines import engines
from model_optimizer.kb.rules import ANY_SCHEME, rules
from model_optimizer.kb.schemes import reasons, scheme, schemes
from model_optimizer.kb.states import state

ALL = [(engine, index, rule) for engine, found in rules().items() for index, rule in enumerate(found)]

ISSUE_CODES = {
    "CAPABILITY_TOO_LOW",
    "NO_KERNEL_IN_ENGINE_VERSION",
    "FORMAT_UNKNOWN",
    "FORMAT_REMOVED_IN_VERSION",
    "FUSED_LAYER_MIXED_BITS",
    "GROUP_SIZE_TP",
    "HEADS_NOT_DIVISIBLE_BY_TP",
    "HEAD_DIM_UNSUPPORTED",
    "DTYPE_UNSUPPORTED",
    "WEIGHTS_DO_NOT_FIT",
    "KV_CACHE_DOES_NOT_FIT",
    "ROOFLINE_ABOVE_SLO",
    "OS_UNSUPPORTED",
    "DRIVER_TOO_OLD",
    "CUDA_DROPPED_ARCHITECTURE",
}


def test_every_engine_has_rules():
    assert set(rules()) == {facts.id for facts in engines()}


@pytest.mark.parametrize(("engine", "index", "rule"), ALL, ids=[f"{engine}-{index}" for engine, index, _ in ALL])
def test_a_rule_decides_its_example(engine, index, rule):
    example = rule.example
    named = example.scheme or next(name for name in rule.schemes if name != ANY_SCHEME)
    found = state(named, engine, example.gpu, example.version)
    assert found.code == rule.code
    # The sentence is this rule's own, so no rule before it and no gate took the example away.
    head = rule.sentence.split("{")[0].strip()
    assert head in found.sentence
    expected = "unknown" if rule.state == "impossible" and rule.status == "community" else rule.state
    assert found.state == expected


@pytest.mark.parametrize(("engine", "index", "rule"), ALL, ids=[f"{engine}-{index}" for engine, index, _ in ALL])
def test_a_rule_has_sources_and_ends_like_a_sentence(engine, index, rule):
    assert rule.sources and rule.date >= "2026-01-01"
    assert rule.sentence.endswith(".") and len(rule.sentence) <= 160
    assert rule.capability is None or rule.platform == "cuda"
    assert rule.gfx is None or rule.platform == "rocm"


def test_reason_codes_cover_what_users_meet():
    assert set(reasons()) >= ISSUE_CODES
    assert {reason.state for reason in reasons().values()} == {"native", "emulated", "impossible", "unknown"}
    assert all(reason.fix for reason in reasons().values() if reason.state != "native")


def test_schemes_are_sound():
    assert len({spec.id for spec in schemes()}) == len(schemes()) >= 40
    for spec in schemes():
        assert spec.sources and spec.title
        assert 2 <= spec.weight_bits <= 32 and 4 <= spec.activation_bits <= 32
        assert set(spec.methods) <= {facts.id for facts in engines()}


@pytest.mark.parametrize(
    ("spelling", "found"),
    [("FP8", "fp8"), ("Q4_K_M", "q4_k_m"), ("q4-k-m", "q4_k_m"), ("w4a16 awq", "w4a16-awq"), ("NVFP4", "nvfp4")],
)
def test_schemes_by_name(spelling, found):
    assert scheme(spelling).id == found


def test_group_scheme_bits_are_arithmetic():
    """A 16-bit scale a group of 128 on 4-bit values; an 8-bit scale a block of 16 or 32 (MX, NVFP4)."""
    assert scheme("w4a16").weight_bits == 4 + 16 / 128
    assert scheme("nvfp4").weight_bits == 4 + 8 / 16
    assert scheme("mxfp4").weight_bits == 4 + 8 / 32
    assert scheme("mxfp8").weight_bits == 8 + 8 / 32
    assert scheme("fp8-block").weight_bits == pytest.approx(8 + 32 / 128**2, abs=1e-4)
    assert scheme("q8_0").weight_bits == pytest.approx((32 + 2) * 8 / 32, abs=0.001)


def test_methods_are_names_the_engine_knows():
    by_id = {facts.id: facts for facts in engines()}
    for spec in schemes():
        for engine, method in spec.methods.items():
            known = by_id[engine].quantization_methods
            if spec.kind == "weights" and known and method != "bitsandbytes":  # which vLLM dropped
                assert method in known, (spec.id, engine, method)
