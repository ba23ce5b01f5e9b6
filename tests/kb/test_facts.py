"""The shipped data says what the fact files beside the repository say."""

import pytest

from model_optimizer.kb.compat import compat
from model_optimizer.kb.engines import engine, engines
from model_optimizer.kb.find import matching_gpus
from model_optimizer.kb.gpus import gpus

GIB, MIB = 2**30, 2**20
PEAKS = {"fp32": "fp32", "fp16": "fp16_tensor", "bf16": "bf16_tensor", "fp8": "fp8_tensor", "int8": "int8_tops",
         "fp4": "fp4_tensor"}  # fmt: skip


def _value(sourced):
    return None if sourced is None else sourced.value


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.id)
def test_gpu(spec, gpu_facts):
    facts = gpu_facts[spec.id]
    assert spec.vendor == facts["vendor"] and spec.chip == facts["chip"]
    assert _value(spec.compute_capability) == facts["compute_capability"] and _value(spec.gfx) == facts["gfx"]
    assert _value(spec.multiprocessors) == facts["sm_count"]
    assert (_value(spec.boost_clock_hz) or None) == (facts["boost_clock_mhz"] and facts["boost_clock_mhz"] * 1e6)
    assert spec.memory_bytes.value == facts["memory_gib"] * GIB
    assert [size // GIB for size in spec.memory_variants_bytes] == (facts["memory_variants_gib"] or [])
    if facts["memory_reported_mib"] is not None:
        assert spec.reported_memory_bytes.value == facts["memory_reported_mib"] * MIB
    assert spec.memory_bandwidth_bytes_s.value == pytest.approx(facts["memory_bandwidth_gbps"] * 1e9)
    assert spec.memory_bus_bits == facts["memory_bus_bits"]
    assert (_value(spec.l2_bytes) or 0) == (facts["l2_mib"] or 0) * MIB
    assert (_value(spec.last_level_cache_bytes) or 0) == (facts["l3_mib"] or 0) * MIB
    link = facts["interconnect"]
    assert (_value(spec.nvlink_bytes_s) or 0) == (link["nvlink_gbps"] or 0) * 1e9
    assert (_value(spec.c2c_bytes_s) or 0) == link.get("c2c_gbps", 0) * 1e9
    pcie = _value(spec.pcie)
    assert (pcie and (pcie.generation, pcie.lanes)) == (link["pcie_gen"] and (link["pcie_gen"], link["pcie_lanes"]))
    assert _value(spec.tdp_w) == facts["tdp_w"] and list(spec.tdp_range_w or []) == (facts["tdp_range_w"] or [])


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.id)
def test_gpu_software_and_peaks(spec, gpu_facts):
    facts = gpu_facts[spec.id]
    assert _value(spec.min_driver_linux) == facts["min_driver_linux"]
    assert _value(spec.max_driver_branch) == facts["max_driver_branch"]
    assert (_value(spec.min_cuda), _value(spec.max_cuda)) == (facts["min_cuda"], facts["max_cuda"])
    assert list(spec.pci_ids) == (facts["pci_device_ids"] or [])
    assert spec.features == {name: value for name, value in facts["features"].items() if value is not None}
    assert len(spec.known_issues) == len(facts["known_issues"] or [])
    peaks = facts["peak_dense_tflops"]
    for dtype, field in PEAKS.items():
        expected = peaks[field]
        found = _value(spec.dense_flops.get(dtype))
        assert found == (None if expected is None else pytest.approx(expected * 1e12)), dtype
    for dtype in ("fp16", "fp8"):
        expected = peaks[f"{dtype}_tensor_fp16acc"]
        found = _value(spec.fp16_accumulate_flops.get(dtype))
        assert found == (None if expected is None else pytest.approx(expected * 1e12))
    derived = not facts["peak_basis"].startswith(("published", "vendor-channel", "widely quoted"))
    assert all((value.basis == "derived") is derived for value in spec.dense_flops.values())


def test_all_gpus_and_no_others(gpu_facts):
    assert {spec.id for spec in gpus()} == set(gpu_facts)


def test_aliases_of_the_facts_lead_to_their_gpu(gpu_facts):
    """Some of them name a family; then the GPU is among the choices."""
    family = {"A100", "A100 80G", "A100 40G", "H100", "V100", "P100", "Tesla P100"}
    for gpu_id, facts in gpu_facts.items():
        for alias in facts["aliases"]:
            found = [spec.id for spec in matching_gpus(alias)]
            assert gpu_id in found, alias
            assert len(found) == 1 or alias in family


def test_engines(engine_facts):
    shipped = {facts.id: facts for facts in engines()}
    assert set(shipped) == set(engine_facts)
    for name, facts in engine_facts.items():
        flags = facts.get("flags") or facts.get("trtexec_flags") or []
        listed = [row for group in flags.values() for row in group] if isinstance(flags, dict) else flags
        assert len(shipped[name].flags) == len(listed), name
        for mine, row in zip(shipped[name].flags, listed, strict=True):
            assert mine.flag == (row.get("flag") or row.get("option"))
            assert (mine.since, mine.removed) == (row.get("since"), row.get("removed"))
            assert mine.default == row.get("default")
    assert _value(engine("vllm").min_compute_capability) == engine_facts["vllm"]["min_compute_capability"]
    assert engine("vllm").current_version == engine_facts["vllm"]["current_version"]
    assert engine("sglang").current_version == engine_facts["sglang"]["current_version"]


def test_vllm_methods(engine_facts):
    facts = engine_facts["vllm"]["quantization"]
    assert set(engine("vllm").quantization_methods) == {*facts["methods_0_33"], *facts["online_shorthands"]}


def test_metric_names(engine_facts):
    for name in ("vllm", "sglang", "llama.cpp"):
        facts = engine_facts[name]["metrics"]
        for key in ("running", "waiting"):
            assert engine(name).metrics[key] == facts[key]


def test_compat(compat_facts):
    rows = {row.cuda: (row.linux, row.windows) for row in compat().toolkits}
    assert rows == {row["cuda"]: (row["linux"], row["windows"]) for row in compat_facts["cuda_drivers"]["toolkits"]}
    assert compat().introduced_in == compat_facts["cuda_compute_capability"]["introduced_in"]
    floors = compat_facts["cuda_drivers"]["minor_version_compatibility"]["rows"]
    assert compat().min_driver_of_major == {row["major"]: row["linux_min"] for row in floors}
