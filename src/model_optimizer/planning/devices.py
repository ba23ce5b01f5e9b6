"""From facts about a GPU and an engine to the numbers that the arithmetic takes."""

from __future__ import annotations

from model_optimizer.kb import query
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import EngineFacts, SchemeSpec, State
from model_optimizer.records.sizing import Parallelism
from model_optimizer.sizing.memory import EngineMemory
from model_optimizer.sizing.speed import Device, Efficiency

GIB = 2**30

# Shares of the peak and fixed costs that engines reach. Fitted to vLLM's rows of Llama-3.1-70B and gpt-oss-120b on H200
# (8 bits, software) and to Llama-3.1-8B on H100 (16 bits) in the measurements that aiconfigurator publishes; errors on
# those and on rows that were held out are in benchmarks/records/prediction-*.md. One fit for all GPUs: it ranks, it
# does not promise. The spread holds the measured time per token of nine rows in ten.
FITTED = Efficiency(
    bandwidth=0.90,
    compute=0.70,
    step_overhead_s=1.1e-3,
    layer_overhead_s=2.5e-5,
    allreduce_latency_s=1.5e-5,
    spread=0.35,
    origin="fitted to public measurements on H200 and H100 (benchmarks/prediction.py)",
    sequence_overhead_s=2.2e-5,
)
NARROW = FITTED._replace(compute=0.45)  # 8 and 4 bits: rounding activations, and attention that stays in 16 bits
IN_SOFTWARE = FITTED._replace(compute=0.20, spread=0.5)  # unpacking in the kernel costs arithmetic

_RUNTIME_GIB = {"llama.cpp": 0.5}
_GRAPH_GIB = {"vllm": 0.6, "sglang": 0.8, "tensorrt-llm": 0.8}


def compute_flops(gpu: GpuSpec, scheme: SchemeSpec, state: State) -> float | None:
    """Dense FLOP/s of the type that the products are really computed in; 16 bit where the scheme is emulated.

    ``None`` where no sourced peak is known for any type it could use.
    """
    wanted = scheme.compute if state.state == "native" else "bf16"
    for dtype in (wanted, "bf16", "fp16", "fp32"):
        peak = gpu.peak_flops(dtype)
        if peak is not None:
            return peak.value
    return None


def device(gpu: GpuSpec, flops: float) -> Device:
    """Base units of one GPU; the link is NVLink in one direction where the board has it, else PCIe."""
    link = 16e9
    if gpu.nvlink_bytes_s is not None:
        link = gpu.nvlink_bytes_s.value / 2
    elif gpu.pcie is not None:
        link = gpu.pcie.value.bytes_s
    return Device(bandwidth_bytes_s=gpu.memory_bandwidth_bytes_s.value, flops=flops, link_bytes_s=link)


def efficiency(engine: EngineFacts, state: State) -> Efficiency:
    """How near to the peak: less for types narrower than 16 bits, and where the kernel unpacks weights, as llama.cpp's
    always do.
    """
    if state.state != "native" or engine.id == "llama.cpp":
        return IN_SOFTWARE
    return NARROW if query.scheme(state.scheme).compute in ("fp8", "int8", "fp4") else FITTED


def most_users(engine: EngineFacts) -> int:
    """Slots beyond which the engine's scheduler is not made to go: llama.cpp's server shares one context."""
    return 16 if engine.id == "llama.cpp" else 1024


def engine_memory(engine: EngineFacts, gpu: GpuSpec, split: Parallelism) -> EngineMemory:
    """How this engine takes this GPU's memory, by its defaults.

    The prefill budget is vLLM's default for the API server: 16,384 tokens from 160 GiB, 8,192 from 70 GiB, else 2,048.
    """
    total = gpu.usable_memory_bytes
    tokens = 16384 if total >= 160 * GIB else 8192 if total >= 70 * GIB else 2048
    share = {"total": 0.92, "weights_and_kv": 0.88, "free_after_weights": 0.90}.get(engine.memory_share, 0.95)
    runtime = _RUNTIME_GIB.get(engine.id, 0.7) + (0.4 if split.tensor > 1 else 0.0)
    return EngineMemory(
        share=share,
        share_of=engine.memory_share if engine.memory_share in ("weights_and_kv", "free_after_weights") else "total",
        runtime_bytes=runtime * GIB,
        graph_bytes=_GRAPH_GIB.get(engine.id, 0.0) * GIB,
        max_batched_tokens=512 if engine.id == "llama.cpp" else tokens,
        origin=f"{engine.id} defaults; graphs and runtime are estimates until it has been started once",
    )
