"""Not one false claim of the founding articles is in the data (those that a machine can check)."""

import json

import pytest

from model_optimizer.kb.engines import engine, engines, flag_in
from model_optimizer.kb.find import gpu
from model_optimizer.kb.load import data_folder
from model_optimizer.kb.schemes import scheme
from model_optimizer.kb.states import gates, state
from model_optimizer.kb.traffic import traffic_profiles
from model_optimizer.records.knowledge import FlagFact, MissingName

GIB, MIB = 2**30, 2**20


def known(value):
    """The value of a fact that must be there."""
    assert value is not None
    return value.value


# claim number in founding/claims.md → what must hold because the claim is false (or true)
HARDWARE = {
    6: lambda: known(gpu("4060 laptop").compute_capability) == "8.9",
    7: lambda: known(gpu("4060").compute_capability) == "8.9",
    8: lambda: gpu("4060 laptop").memory_bytes.value == 8 * GIB,
    10: lambda: known(gpu("4060 laptop").multiprocessors) == 24,
    11: lambda: known(gpu("4060 laptop").l2_bytes) == 32 * MIB and known(gpu("4060").l2_bytes) == 24 * MIB,
    12: lambda: gpu("4060 laptop").memory_bus_bits == 128,
    13: lambda: gpu("4060 laptop").memory_bandwidth_bytes_s.value == 256e9,
    15: lambda: gpu("4060 laptop").dense_flops["fp16"].value == 23.2e12,
    17: lambda: gpu("4060 laptop").features["fp16_tensor"] is True,
    18: lambda: gpu("4060").features["bf16"] and state("bf16", "vllm", "4060").state == "native",
    19: lambda: gpu("10de:28a0").id == "rtx-4060-laptop" and "10de:2782" not in gpu("4060 laptop").pci_ids,
    20: lambda: gpu("4060 laptop").nvlink_bytes_s is None and known(gpu("4060 laptop").pcie).lanes == 8,
    23: lambda: known(gpu("4090").compute_capability) == "8.9",
    25: lambda: gpu("l20").architecture == "ada" and gpu("l20").nvlink_bytes_s is None,
    26: lambda: (known(gpu("l20").multiprocessors), known(gpu("l20").l2_bytes)) == (92, 96 * MIB),
    27: lambda: gpu("l20").memory_bytes.value == 48 * GIB,
    28: lambda: known(gpu("h100 sxm").multiprocessors) == 132,
    29: lambda: known(gpu("h100 sxm").l2_bytes) == 50 * MIB,
    30: lambda: gpu("h100 sxm").memory_bytes.value == 80 * GIB and gpu("h100 nvl").memory_bytes.value == 94 * GIB,
    31: lambda: all(known(gpu(name).l2_bytes) == 40 * MIB for name in ("a100 sxm 80gb", "a100 pcie 40gb")),
    32: lambda: gpu("a100 sxm 80gb").memory_bus_bits == 5120,
    33: lambda: known(gpu("a100 sxm 80gb").nvlink_bytes_s) == 600e9,
    35: lambda: gpu("a100 sxm 80gb").features["fp8"] is False and gpu("h100 sxm").features["fp8"] is True,
    36: lambda: known(gpu("5070 laptop").compute_capability) == "12.0" and "10de:2d18" in gpu("5070 laptop").pci_ids,
    37: lambda: known(gpu("gtx 1070").compute_capability) == "6.1",
    38: lambda: known(gpu("4060 laptop").min_driver_linux) == "525.89.02",
    70: lambda: state("onnx-fp16", "tensorrt", "gtx 1070", "10.0").state == "impossible",
    71: lambda: known(engine("tensorrt").min_compute_capability) == "7.5",
    74: lambda: state("onnx-fp16", "tensorrt", "gtx 1070", "8.6").state == "native",
    120: lambda: scheme("w4a16-awq").calibration == "needed",
    122: lambda: state("fp8", "vllm", "a100 sxm 80gb").state == "emulated",
    123: lambda: state("fp8", "vllm", "4060 laptop").state == "native",
    140: lambda: "OS_UNSUPPORTED" in [gate.code for gate in gates("vllm", "4060 laptop", os="windows")],
    156: lambda: "OS_UNSUPPORTED" in [gate.code for gate in gates("tensorrt-llm", "4090", os="windows")],
    159: lambda: state("fp8", "tensorrt-llm", "4060").state == "native",
    168: lambda: scheme("w4a8-fp8").activation_bits == 8 and scheme("w4a16").activation_bits == 16,
    169: lambda: (scheme("w8a16").weight_bits < 8.5, scheme("w8a16").activation_bits) == (True, 16),
    171: lambda: 13.5e9 <= 27e9 * scheme("w4a16-awq").weight_bits / 8 <= 16e9,
    172: lambda: 27e9 * scheme("fp8").weight_bits / 8 > gpu("4060 laptop").usable_memory_bytes,
    175: lambda: state("w8a8-int8", "vllm", "b300").state == "impossible",
    176: lambda: {state(s, "vllm", "4090").state for s in ("w4a16-awq", "w4a16-gptq")} == {"native"},
    177: lambda: all(state("q4_k_m", "llama.cpp", g).state == "native" for g in ("4090", "mi300x", "b580")),
}  # fmt: skip

NEVER_VALID = [
    ("vllm", "--swap-space"),
    ("vllm", "--backend tensorrt_llm"),
    ("vllm", "VLLM_SCHEDULER_CONFIG_PATH"),
    ("vllm", "VLLM_DISABLE_CUSTOM_KERNELS"),
    ("vllm", "vllm-benchmark"),
    ("vllm", "vllm:gpu_cache_usage_ratio"),
    ("vllm", "--target-latency"),
    ("tensorrt", "--use_dla"),
    ("tensorrt", "--workspace"),
    ("tensorrt", "--dynamic-batch"),
    ("tensorrt", "polygraphy inspect onnx"),
    ("tensorrt-llm", "--builder_opt"),
    ("tensorrt-llm", "--max_output_len"),
    ("tensorrt-llm", "--use_custom_all_reduce"),
    ("tensorrt-llm", "convert_checkpoint"),
]


@pytest.mark.parametrize("number", sorted(HARDWARE))
def test_claim(number):
    assert HARDWARE[number]()


@pytest.mark.parametrize(("name", "flag"), NEVER_VALID)
def test_names_never_to_be_used_are_known_as_missing(name, flag):
    found = flag_in(engine(name), flag)
    assert isinstance(found, MissingName) and found.why


def test_no_such_name_is_offered_anywhere_else():
    """The names stand in the lists of missing names only (and, with ``removed``, among the flags of old versions)."""
    for facts in engines():
        offered = {
            "metrics": facts.metrics,
            "serve": facts.serve,
            "install": facts.install,
            "flags": [flag.flag for flag in facts.flags if flag.removed is None],
        }
        text = json.dumps(offered)
        for _, name in NEVER_VALID:
            assert name not in text, (facts.id, name)


def test_the_old_flag_is_marked_removed():
    old = engine("vllm").flag("--swap-space")
    assert isinstance(old, FlagFact) and old.removed == "0.18.1"


def test_no_advice_that_lowers_security_or_hides_faults():
    harmful = (
        "setenforce 0",
        "--disable-validation",
        "mokutil --disable",
        "-e 0",
        "DxCache",
        "chmod 777",
        "empty_cache",
    )

    def texts(folder):
        for entry in folder.iterdir():
            if entry.is_dir() and entry.name != "causes":
                yield from texts(entry)
            elif entry.name.endswith(".yaml"):
                yield entry.name, entry.read_text(encoding="utf-8")

    for name, text in texts(data_folder()):
        for word in harmful:
            assert word not in text, (name, word)


def test_no_expectation_of_speed_stands_in_the_data():
    """Throughput and latency of the articles are unverifiable: nothing in the data promises tokens a second."""
    assert all("tok/s" not in profile.description for profile in traffic_profiles())
    for file in (data_folder() / "gpus").iterdir():
        assert "tok/s" not in file.read_text(encoding="utf-8")


def test_the_numbers_checked_are_those_of_the_claims(claims_text):
    """The list above follows the document: each number exists there with a verdict."""
    rows = {int(line.split("|")[1]): line.split("|")[4].strip() for line in claims_text.splitlines()
            if line.startswith("| ") and line.split("|")[1].strip().isdigit()}  # fmt: skip
    assert set(HARDWARE) <= set(rows) and len(rows) == 193
    assert sum(rows[number] == "false" for number in HARDWARE) >= 20
    for _, name in NEVER_VALID:
        assert name.split(" ")[0].lstrip("-") in claims_text
