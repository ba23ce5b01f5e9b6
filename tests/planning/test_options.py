"""Routes on one kind of GPU: what is kept, what is refused on whose word, when the KV cache's type is a choice."""

from __future__ import annotations

import pytest

from model_optimizer.errors import NothingFits
from model_optimizer.kb import query
from model_optimizer.records.model import HealthCheck, ModelSpec, WeightClass
from model_optimizer.records.workload import LengthClass
from tests.planning.asking import by_scheme, plan, routes, traffic
from tests.sizing import models

FAST = {"tpot_p95": "8.3 ms"}  # 120 tokens/s for each user


def test_120_tokens_a_second_on_an_l20_in_bf16_is_refused_with_the_arithmetic():
    """8.03 B parameters without the embedding table, 2 bytes each: 15.01 GB. (15.01 − 0.10) / 864 GB/s = 17.26 ms."""
    fleet = plan(models.LLAMA_31_8B, "l20", FAST, schemes=("bf16",))
    refused = {r.route: r for r in fleet.refused}["bf16 · vllm · l20"]
    assert refused.code == "ROOFLINE_ABOVE_SLO"
    for part in ("tpot_p95 ≤ 8.3 ms", "floor of 17.3 ms", "15.01 GB", "864 GB/s", "58 tokens/s a user"):
        assert part in refused.reason
    assert not fleet.options
    assert not fleet.feasible
    assert fleet.nearest is not None
    assert fleet.nearest.light.tpot_floor_s == pytest.approx((15.01e9 - 96 * 2**20) / 864e9, rel=1e-3)


def test_fp8_lies_just_above_that_limit_too_and_four_bits_below():
    fleet = plan(models.LLAMA_31_8B, "l20", FAST)
    refused = {r.route: r.code for r in fleet.refused}
    assert refused["fp8 · vllm · l20"] == "ROOFLINE_ABOVE_SLO"
    assert "floor of 9.18 ms" in next(r.reason for r in fleet.refused if r.route == "fp8 · vllm · l20")
    assert fleet.feasible
    best = fleet.options[0]
    assert query.scheme(best.deployment.scheme).weight_bits < 5
    assert best.light.tpot_floor_s < 0.0083 < best.light.tpot_s.high


def test_a_figure_that_only_the_community_knows_hints_and_does_not_refuse():
    assert query.gpu("rtx 4060 desktop").memory_bandwidth_bytes_s.status == "community"
    fleet = plan(models.QWEN3_06B, "rtx 4060 desktop", {"tpot_p95": "1 ms"}, schemes=("bf16",), engines=("vllm",))
    assert not any(r.code == "ROOFLINE_ABOVE_SLO" for r in fleet.refused)
    assert [o.deployment.scheme for o in fleet.options] == ["bf16"]
    assert not fleet.options[0].meets
    assert any("a hint, no refusal" in note for note in fleet.options[0].notes)


def test_an_engine_that_cannot_run_there_is_refused_once():
    fleet = plan(models.LLAMA_31_8B, "v100 sxm2")
    about_vllm = [r for r in fleet.refused if "vllm" in r.route]
    assert [r.route for r in about_vllm] == ["vllm · v100-sxm2"]
    assert {o.deployment.engine for o in fleet.options} == {"llama.cpp"}


def test_on_native_windows_only_llama_cpp_is_left():
    fleet = plan(models.LLAMA_31_8B, "rtx 4090", os="windows")
    assert {o.deployment.engine for o in fleet.options} == {"llama.cpp"}
    refused = {r.route: r for r in fleet.refused if r.code == "OS_UNSUPPORTED"}
    assert {"vllm · rtx-4090", "tensorrt-llm · rtx-4090"} <= set(refused)
    assert "WSL2" in (refused["vllm · rtx-4090"].fix or "")
    assert "vllm" in {o.deployment.engine for o in plan(models.LLAMA_31_8B, "rtx 4090", os="wsl2").options}


def test_an_old_driver_rules_out_what_was_built_for_a_newer_cuda():
    fleet = plan(models.LLAMA_31_8B, "l20", driver="550.54.14")
    refused = next(r for r in fleet.refused if r.route == "vllm · l20")
    assert refused.code == "DRIVER_TOO_OLD"
    assert "550.54.14" in refused.reason and "580.65.06" in refused.reason


def test_files_that_an_engine_does_not_read_are_one_line():
    refused = {r.route: r.code for r in plan(models.LLAMA_31_8B, "l20").refused}
    assert refused["12 gguf schemes · vllm · l20"] == "FORMAT_REMOVED_IN_VERSION"
    assert refused["12 gguf schemes · tensorrt-llm · l20"] == "FORMAT_UNKNOWN"
    assert refused["17 hf schemes · llama.cpp · l20"] == "FORMAT_UNKNOWN"


def test_two_bits_only_where_nothing_else_fits():
    """Qwen3-32B needs 12.0 GiB as Q2_K and 17.0 as IQ4_XS: of 16 GiB only the first leaves room."""
    small = plan(models.QWEN3_32B, "rtx 4060 ti 16gb")
    assert {o.deployment.scheme for o in small.options} == {"q2_k"}
    large = plan(models.QWEN3_32B, "l20")
    assert "q2_k" not in {o.deployment.scheme for o in large.options}
    assert "q2_k" in {o.deployment.scheme for o in plan(models.QWEN3_32B, "l20", schemes=("q2_k",)).options}


def test_the_reference_engine_is_planned_only_when_it_is_named():
    assert "transformers" not in {o.deployment.engine for o in plan(models.LLAMA_31_8B, "l20").options}
    named = plan(models.LLAMA_31_8B, "l20", engines=("transformers",))
    assert {o.deployment.engine for o in named.options} == {"transformers"}
    expanded = by_scheme(named)["q4_k_m", "transformers"]  # GGUF is expanded to 16 bit when it is loaded
    assert expanded.memory.weight_bytes == pytest.approx(models.LLAMA_31_8B.weight_bytes)


def test_the_same_bytes_are_not_offered_twice():
    on_ada = {o.deployment.scheme for o in plan(models.LLAMA_31_8B, "l20").options}
    assert "bf16" in on_ada
    assert on_ada.isdisjoint({"fp16", "fp32", "gguf-bf16"})
    on_turing = {o.deployment.scheme for o in plan(models.QWEN3_06B, "t4").options}
    assert "fp16" in on_turing and "bf16" not in on_turing


@pytest.mark.parametrize(("heads", "sizes"), [(32, [8]), (14, [2]), (25, [1])])
def test_attention_heads_must_divide(heads: int, sizes: list[int]):
    """A limit that nothing keeps makes the planner look at every size; the largest that is allowed comes nearest."""
    spec = models.model(
        "m", layers=24, hidden=64 * heads, mlp=4096, heads=heads, kv_heads=heads, head_dim=64, vocab=32000
    )
    found = [n for n in (1, 2, 4, 8) if not query.shape_refusals(spec, "bf16", "vllm", n)]
    assert max(found) == sizes[-1]
    answer = routes(spec, "h100-sxm", "vllm", "bf16", count=8)
    assert answer.found


# KV cache


def test_a_smaller_kv_cache_is_offered_only_where_the_kv_cache_binds():
    roomy = plan(models.LLAMA_31_8B, "h200 sxm", {"ttft_p95": "300 ms"})
    assert {o.deployment.kv_dtype for o in roomy.options if o.deployment.engine == "vllm"} == {"auto"}
    short = plan(models.LLAMA_31_8B, "rtx 4060 laptop")
    kinds = {(o.deployment.engine, o.deployment.kv_dtype) for o in short.options}
    assert ("vllm", "kv-fp8") in kinds and ("llama.cpp", "kv-q8_0") in kinds
    assert ("llama.cpp", "kv-fp8") not in kinds  # llama.cpp knows no FP8
    assert all(o.deployment.kv_dtype == "auto" for o in short.options[:1])


def test_it_is_marked_for_a_long_context_check_and_halves_the_bytes_of_a_token():
    fleet = plan(models.LLAMA_31_8B, "rtx 4060 laptop", schemes=("w4a16",), engines=("vllm",))
    plain, small = fleet.options
    assert (plain.deployment.kv_dtype, small.deployment.kv_dtype) == ("auto", "kv-fp8")
    assert any("long-context check" in note for note in small.notes)
    assert not plain.notes
    assert small.memory.kv_bytes_per_token == plain.memory.kv_bytes_per_token / 2
    assert small.deployment.engine_args["kv_cache_dtype"] == "fp8"
    assert "kv_cache_dtype" not in plain.deployment.engine_args
    assert small.capacity is not None and plain.capacity is not None
    assert small.capacity.concurrency > plain.capacity.concurrency


def test_it_opens_a_route_that_the_default_has_no_room_for():
    """128 KiB a token; 7.36 usable − 5.3 weights − 1.6 beside them leaves 0.43 GiB: 3,500 tokens, 7,000 in FP8."""
    long = traffic().model_copy(update={"lengths": (LengthClass(prompt_tokens=4500, weight=1, output_tokens=256),)})
    fleet = plan(models.LLAMA_31_8B, "rtx 4060 laptop", of=long, engines=("vllm",), schemes=("w4a16",))
    assert [o.deployment.kv_dtype for o in fleet.options] == ["kv-fp8"]
    refused = next(r for r in fleet.refused if r.code == "KV_CACHE_DOES_NOT_FIT")
    assert "the longest request needs 4756" in refused.reason


def test_a_kv_cache_type_may_be_asked_for_by_name():
    fleet = plan(models.LLAMA_31_8B, "b200", schemes=("fp8", "kv-nvfp4"), engines=("vllm",))
    assert {o.deployment.kv_dtype for o in fleet.options} == {"auto", "kv-nvfp4"}
    assert fleet.options[0].deployment.kv_dtype == "auto"


# What the checkpoint is already


def quantized(method: str, dtype: str, bits: float, model: ModelSpec = models.LLAMA_31_8B) -> ModelSpec:
    """The model with its matrices stored by that method."""

    def packed(c: WeightClass) -> WeightClass:
        if c.name not in ("attention", "mlp"):
            return c
        return c.model_copy(update={"weight_bytes": int(c.parameters * bits / 8), "dtypes": (dtype,)})

    classes = tuple(map(packed, model.weight_classes))
    total = sum(c.weight_bytes for c in classes)
    return model.model_copy(update={"quantized_as": method, "weight_classes": classes, "weight_bytes": total})


@pytest.mark.parametrize(
    ("method", "dtype", "bits", "schemes"),
    [
        ("gptq", "I32", 4.16, {"w4a16-gptq"}),
        ("gptq", "I32", 8.13, {"w8a16"}),
        ("awq", "I32", 4.16, {"w4a16-awq"}),
        ("fp8", "F8_E4M3", 8, {"fp8", "fp8-block"}),
        ("compressed-tensors", "F8_E4M3", 8, {"fp8", "fp8-block"}),
        ("compressed-tensors", "I8", 8, {"w8a8-int8"}),
        ("compressed-tensors", "I32", 4.13, {"w4a16"}),
        ("modelopt", "U8", 4.5, {"nvfp4"}),
        ("mxfp4", "U8", 4.25, {"mxfp4"}),
    ],
)
def test_a_quantized_checkpoint_is_served_as_what_it_is(method: str, dtype: str, bits: float, schemes: set[str]):
    spec = quantized(method, dtype, bits)
    fleet = plan(spec, "h100 sxm", engines=("vllm",))
    assert {o.deployment.scheme for o in fleet.options} == schemes
    assert fleet.options[0].memory.weight_bytes == pytest.approx(spec.weight_bytes)
    assert any(r.code == "SOURCE_ALREADY_QUANTIZED" for r in fleet.refused)


def test_an_unknown_method_is_said_and_nothing_claimed():
    with pytest.raises(NothingFits) as caught:
        plan(quantized("quip-sharp", "I32", 2.2), "h100 sxm")
    assert "'quip-sharp'" in caught.value.evidence[0]


def test_a_gguf_file_is_for_engines_that_read_gguf():
    spec = models.LLAMA_31_8B.model_copy(
        update={"format": "gguf", "quantized_as": "q4_k_m", "weight_bytes": 4_900_000_000}
    )
    fleet = plan(spec, "l20")
    assert ("q4_k_m", "llama.cpp") in by_scheme(fleet)
    assert {o.deployment.scheme for o in fleet.options} == {"q4_k_m"}
    refused = {r.route: r.code for r in fleet.refused}
    assert refused["vllm · l20"] == refused["tensorrt-llm · l20"] == "FORMAT_UNKNOWN"


# A model that the arithmetic may not be about


def strange(model: ModelSpec) -> ModelSpec:
    check = HealthCheck(id="config.architecture", severity="warning", message="the architecture 'Odd' is not known")
    return model.model_copy(update={"health": (check,)})


def test_an_unknown_architecture_widens_the_range_and_says_so():
    known, odd = plan(models.LLAMA_31_8B, "l20").options[0], plan(strange(models.LLAMA_31_8B), "l20")
    assert "'Odd' is not known" in odd.notes[0] and "wide range" in odd.notes[0]
    span = odd.options[0].light.tpot_s
    assert span.high / span.value == pytest.approx(2.0)
    assert span.value == pytest.approx(known.light.tpot_s.value)
    assert span.high > known.light.tpot_s.high


def test_for_an_unknown_architecture_only_the_weights_refuse():
    odd = strange(models.LLAMA_31_8B)
    fast = plan(odd, "l20", FAST, schemes=("bf16",), engines=("vllm",))
    assert not any(r.code == "ROOFLINE_ABOVE_SLO" for r in fast.refused)
    long = plan(odd, "rtx 4060 laptop", of=traffic("rag"), schemes=("w4a16",), engines=("vllm",))
    assert not any(r.code == "KV_CACHE_DOES_NOT_FIT" for r in long.refused)
    assert any("holds only" in note for note in long.options[0].notes)
    with pytest.raises(NothingFits):
        plan(strange(models.QWEN3_32B), "rtx 4060 laptop", schemes=("bf16",), engines=("vllm",))


def test_without_any_known_tensor_the_bytes_of_the_headers_count():
    bare = models.LLAMA_31_8B.model_copy(update={"weight_classes": ()})
    fleet = plan(bare, "l20", schemes=("bf16",), engines=("vllm",))
    assert fleet.options[0].memory.weight_bytes == pytest.approx(models.LLAMA_31_8B.weight_bytes)
    assert "only the sum of their bytes" in fleet.notes[0]
    half = plan(bare, "2x rtx 3090", schemes=("bf16",), engines=("vllm",))
    assert half.feasible


def test_a_rate_that_no_source_gives_is_assumed_and_said():
    assert query.gpu("a10g").peak_flops("bf16") is None
    option = plan(models.LLAMA_31_8B, "a10g", schemes=("w4a16",), engines=("vllm",)).options[0]
    assert any("no source gives" in note for note in option.notes)
    assert option.light.tpot_s.high / option.light.tpot_s.value == pytest.approx(2.0)
