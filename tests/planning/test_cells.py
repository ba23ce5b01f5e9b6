"""What can run where: cells of model, GPU, engine and scheme, each worked out by hand, each with where it is from.

Sizes in GiB, from public shapes (embedding and head stay in 16 bits in Hugging Face schemes):

    Qwen3-0.6B   16 bit 1.1
    Llama-3.1-8B 16 bit 15.0, fp8 8.5, 4 bit 5.3, q8_0 7.9, q4_k_m 4.6, q2_k 3.0
    Gemma-3-27B  16 bit 50.3, 8 bit 26.5, 4 bit 14.9
    Qwen3-30B-A3B 16 bit 56.9, 8 bit 29.0, 4 bit 15.5
    Qwen3-32B    16 bit 61.0, fp8 32.0, 4 bit 17.9, q4_k_m 18.7
    Mixtral      16 bit 87.0, fp8 43.7, 4 bit 22.8
    DeepSeek-V3  16 bit 1338, fp8 671, nvfp4 379 (every layer counted with experts)

An engine may use 92 % of what a driver shows (vLLM), 88 % (SGLang), all but 1 GiB (llama.cpp), and needs about 1.6 to 2
GiB beside the weights. ``expected`` is a state, or the code of the refusal. ``from`` names the source: ``v`` vLLM's
sources, ``s`` SGLang's, ``t`` TensorRT-LLM's support table, ``l`` llama.cpp's README, ``m`` the
arithmetic above.
"""

from __future__ import annotations

import re

import pytest

from model_optimizer.records.model import ModelSpec
from tests.planning.asking import routes
from tests.sizing import models

MODELS: dict[str, ModelSpec] = {
    "0.6b": models.QWEN3_06B,
    "8b": models.LLAMA_31_8B,
    "27b": models.GEMMA3_27B,
    "30b": models.QWEN3_30B_A3B,
    "32b": models.QWEN3_32B,
    "mixtral": models.MIXTRAL,
    "v3": models.DEEPSEEK_V3,
}

TABLE = """
model   gpu                    engine        scheme      expected                     from
8b      h100-sxm               vllm          bf16        native                       v
8b      h100-sxm               vllm          fp8         native                       v
8b      h100-sxm               vllm          fp8-block   native                       v
8b      h100-sxm               vllm          w8a8-int8   native                       v
8b      h100-sxm               vllm          w4a16       native                       v
8b      h100-sxm               vllm          w4a16-awq   native                       v
8b      h100-sxm               vllm          w4a8-fp8    native                       v
8b      h100-sxm               vllm          nvfp4       emulated                     v
8b      h100-sxm               vllm          mxfp4       emulated                     v
8b      h100-sxm               vllm          mxfp8       emulated                     v
8b      h100-sxm               vllm          q4_k_m      FORMAT_REMOVED_IN_VERSION    v
8b      h100-sxm               vllm          bnb-4bit    FORMAT_REMOVED_IN_VERSION    v
8b      h100-sxm               sglang        fp8         native                       s
8b      h100-sxm               sglang        w4a8-fp8    native                       s
8b      h100-sxm               sglang        mxfp8       CAPABILITY_TOO_LOW           s
8b      h100-sxm               tensorrt-llm  fp8         native                       t
8b      h100-sxm               tensorrt-llm  fp8-block   native                       t
8b      h100-sxm               tensorrt-llm  w4a8-awq    native                       t
8b      h100-sxm               tensorrt-llm  w4a16-awq   native                       t
8b      h100-sxm               tensorrt-llm  nvfp4       CAPABILITY_TOO_LOW           t
8b      h100-sxm               tensorrt-llm  w8a8-int8   NO_KERNEL_IN_ENGINE_VERSION  t
8b      h100-sxm               tensorrt-llm  q8_0        FORMAT_UNKNOWN               t
8b      h100-sxm               llama.cpp     q8_0        native                       l
8b      h100-sxm               llama.cpp     gguf-f16    native                       l
8b      h100-sxm               llama.cpp     fp8         FORMAT_UNKNOWN               l
8b      b200                   vllm          nvfp4       native                       v
8b      b200                   vllm          mxfp4       native                       v
8b      b200                   vllm          fp8         native                       v
8b      b200                   vllm          w8a8-int8   CAPABILITY_TOO_NEW           v
8b      b200                   sglang        nvfp4       native                       s
8b      b200                   sglang        mxfp8       native                       s
8b      b200                   tensorrt-llm  nvfp4       native                       t
8b      b200                   tensorrt-llm  fp8-block   native                       t
8b      rtx-5090               vllm          fp8         native                       v
8b      rtx-5090               vllm          nvfp4       native                       v
8b      rtx-5090               vllm          w8a8-int8   CAPABILITY_TOO_NEW           v
8b      rtx-5090               vllm          bf16        native                       m
8b      rtx-5090               tensorrt-llm  fp8-block   NO_KERNEL_IN_ENGINE_VERSION  t
8b      rtx-5090               tensorrt-llm  nvfp4       native                       t
8b      dgx-spark-gb10         vllm          fp8         native                       v
8b      dgx-spark-gb10         vllm          w8a8-int8   CAPABILITY_TOO_NEW           v
8b      l20                    vllm          bf16        native                       m
8b      l20                    vllm          fp8         native                       v
8b      l20                    vllm          w4a8-fp8    CAPABILITY_TOO_LOW           v
8b      l20                    vllm          nvfp4       emulated                     v
8b      l20                    sglang        w4a8-fp8    CAPABILITY_TOO_LOW           s
8b      l20                    tensorrt-llm  w4a8-awq    native                       t
8b      l20                    tensorrt-llm  fp8-block   CAPABILITY_TOO_LOW           t
8b      l40s                   vllm          fp8         native                       v
8b      l4                     vllm          bf16        native                       m
8b      l4                     vllm          fp8         native                       v
8b      l4                     tensorrt-llm  w4a8-awq    native                       t
8b      rtx-4090               vllm          fp8         native                       v
8b      rtx-4090               vllm          w4a16-awq   native                       v
8b      rtx-4090               vllm          bf16        native                       m
8b      rtx-4060-laptop        vllm          bf16        WEIGHTS_DO_NOT_FIT           m
8b      rtx-4060-laptop        vllm          fp8         WEIGHTS_DO_NOT_FIT           m
8b      rtx-4060-laptop        vllm          w4a16       native                       m
8b      rtx-4060-laptop        llama.cpp     q4_k_m      native                       m
8b      rtx-4060-laptop        llama.cpp     q8_0        WEIGHTS_DO_NOT_FIT           m
8b      rtx-4060-laptop        llama.cpp     q2_k        native                       m
0.6b    rtx-4060-laptop        vllm          bf16        native                       m
0.6b    rtx-4060-laptop        vllm          fp8         native                       v
8b      a100-sxm-80gb          vllm          fp8         emulated                     v
8b      a100-sxm-80gb          vllm          fp8-block   emulated                     v
8b      a100-sxm-80gb          vllm          w8a8-int8   native                       v
8b      a100-sxm-80gb          vllm          w4a16-gptq  native                       v
8b      a100-sxm-80gb          vllm          nvfp4       emulated                     v
8b      a100-sxm-80gb          sglang        fp8         emulated                     s
8b      a100-sxm-80gb          sglang        w8a8-int8   native                       s
8b      a100-sxm-80gb          tensorrt-llm  fp8         CAPABILITY_TOO_LOW           t
8b      a100-sxm-80gb          tensorrt-llm  w4a8-awq    CAPABILITY_TOO_LOW           t
8b      a100-sxm-80gb          tensorrt-llm  w4a16-gptq  native                       t
8b      rtx-3090               vllm          bf16        native                       m
8b      rtx-3090               vllm          fp8         emulated                     v
8b      rtx-3090               vllm          w8a8-int8   native                       v
8b      rtx-3090               llama.cpp     q6_k        native                       l
8b      rtx-3060               vllm          bf16        WEIGHTS_DO_NOT_FIT           m
8b      rtx-3060               vllm          w4a16       native                       m
8b      a10                    vllm          bf16        native                       m
8b      t4                     vllm          bf16        DTYPE_UNSUPPORTED            v
8b      t4                     vllm          fp16        WEIGHTS_DO_NOT_FIT           m
8b      t4                     vllm          w4a16-awq   native                       v
8b      t4                     vllm          fp8         emulated                     v
8b      t4                     vllm          mxfp4       CAPABILITY_TOO_LOW           v
8b      t4                     vllm          w8a8-int8   native                       v
8b      rtx-2080-ti            vllm          fp16        WEIGHTS_DO_NOT_FIT           m
8b      rtx-2080-ti            vllm          w4a16       native                       m
8b      v100-sxm2              vllm          fp16        CAPABILITY_TOO_LOW           v
8b      v100-sxm2              llama.cpp     q8_0        native                       l
8b      v100-sxm2              tensorrt-llm  fp16        CAPABILITY_TOO_LOW           t
8b      gtx-1070               vllm          fp16        CAPABILITY_TOO_LOW           v
8b      gtx-1070               llama.cpp     q4_k_m      native                       l
8b      gtx-1070               llama.cpp     q8_0        WEIGHTS_DO_NOT_FIT           m
8b      p100-pcie              vllm          fp16        CAPABILITY_TOO_LOW           v
8b      p100-pcie              llama.cpp     q8_0        native                       l
8b      mi300x                 vllm          bf16        native                       v
8b      mi300x                 vllm          fp8         native                       v
8b      mi300x                 vllm          w8a8-int8   native                       v
8b      mi300x                 vllm          nvfp4       emulated                     v
8b      mi300x                 tensorrt-llm  fp8         PLATFORM_UNSUPPORTED         t
8b      mi300x                 llama.cpp     q8_0        native                       l
8b      mi355x                 vllm          mxfp4       native                       v
8b      mi250x                 vllm          w8a8-int8   native                       v
8b      rx-7900-xtx            vllm          w4a16-gptq  native                       v
8b      mi50                   vllm          bf16        ARCHITECTURE_NOT_SHIPPED     v
8b      mi50                   llama.cpp     q8_0        native                       l
8b      arc-b580               vllm          w4a16-gptq  native                       v
8b      arc-b580               vllm          nvfp4       NO_KERNEL_IN_ENGINE_VERSION  v
8b      arc-pro-b60            vllm          fp8         emulated                     v
32b     rtx-4090               vllm          w4a16       native                       m
32b     rtx-4090               vllm          fp8         WEIGHTS_DO_NOT_FIT           m
32b     rtx-4090               llama.cpp     q4_k_m      native                       m
32b     rtx-4090               llama.cpp     q8_0        WEIGHTS_DO_NOT_FIT           m
32b     l20                    vllm          bf16        WEIGHTS_DO_NOT_FIT           m
32b     l20                    vllm          fp8         native                       m
32b     a100-sxm-80gb          vllm          bf16        native                       m
32b     a100-sxm-40gb          vllm          bf16        WEIGHTS_DO_NOT_FIT           m
32b     a100-sxm-40gb          vllm          w8a8-int8   native                       m
32b     h100-sxm               vllm          bf16        native                       m
32b     2x rtx-4090            vllm          fp8         native                       m
32b     2x l20                 vllm          bf16        native                       m
32b     4x rtx-3090            vllm          bf16        native                       m
27b     rtx-4090               vllm          w4a16       native                       m
27b     l40s                   vllm          fp8         native                       m
27b     l40s                   vllm          bf16        WEIGHTS_DO_NOT_FIT           m
30b     rtx-4090               vllm          w4a16       native                       m
30b     l40s                   vllm          fp8         native                       m
30b     4x h100-sxm            vllm          bf16        native                       m
mixtral h100-sxm               vllm          bf16        WEIGHTS_DO_NOT_FIT           m
mixtral h100-sxm               vllm          fp8         native                       m
mixtral h200-sxm               vllm          bf16        native                       m
mixtral l40s                   vllm          fp8         WEIGHTS_DO_NOT_FIT           m
mixtral rtx-a6000              vllm          w4a16       native                       m
mixtral rtx-4090               vllm          w4a16       WEIGHTS_DO_NOT_FIT           m
v3      8x h100-sxm            vllm          fp8-block   WEIGHTS_DO_NOT_FIT           m
v3      8x h200-sxm            vllm          fp8-block   native                       m
v3      8x h200-sxm            vllm          bf16        WEIGHTS_DO_NOT_FIT           m
v3      8x b200                vllm          nvfp4       native                       m
v3      4x b200                vllm          fp8-block   WEIGHTS_DO_NOT_FIT           m
v3      8x b200                vllm          fp8-block   native                       m
v3      h200-sxm               vllm          nvfp4       WEIGHTS_DO_NOT_FIT           m
"""

CELLS = [tuple(re.sub(r"\b(\d)x ", r"\1*", line).split()) for line in TABLE.strip().splitlines()[1:]]


def test_there_are_enough():
    assert len(CELLS) >= 120
    assert len(set(CELLS)) == len(CELLS)
    assert {len(cell) for cell in CELLS} == {6}


@pytest.mark.parametrize(("name", "gpu", "engine", "scheme", "expected", "origin"), CELLS, ids=lambda value: value)
def test_cell(name: str, gpu: str, engine: str, scheme: str, expected: str, origin: str):
    count, _, board = gpu.rpartition("*")
    answer = routes(MODELS[name], board, engine, scheme, count=int(count or 1))
    if expected in ("native", "emulated", "unknown"):
        assert [found.state.state for found in answer.found if found.kv is None] == [expected], answer.refused
        found = answer.found[0]
        assert found.memory.kv_bytes > 0
        assert found.memory.longest_context >= 2176  # the traffic's longest request
        return
    assert not answer.found
    refusal = answer.refused[-1]
    assert refusal.code == expected
    assert refusal.reason and refusal.source
    titles = {"v": "vLLM", "s": "sglang", "t": "TensorRT-LLM", "l": "llama.cpp", "m": "arithmetic"}
    assert titles[origin] in refusal.source
