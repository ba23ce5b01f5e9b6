"""From facts about a GPU and an engine to the numbers that the arithmetic takes."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from model_optimizer.kb import query
from model_optimizer.records.hardware import GpuSpec
from model_optimizer.records.knowledge import EngineFacts, SchemeSpec, State
from model_optimizer.records.sizing import Parallelism
from model_optimizer.sizing.memory import EngineMemory
from model_optimizer.sizing.speed import Device, Efficiency

GIB = 2**30

# Shares of the peak and fixed costs that engines reach. Fitted, then rounded: vLLM with Llama-3.1-70B and gpt-oss-120b
# on H200 (8 bits, in software) and TensorRT-LLM with Llama-3.1-8B on H100 (16 bits), 250 public rows. How far off they
# are there, and on what was held out, is recorded in benchmarks/records/prediction-*.md. The bandwidth is set, not
# fitted: it trades against the cost of a layer (a dozen kernels of a few microseconds). One fit for all GPUs and
# engines: it ranks, it does not promise. The spread holds the measured time per token of nine rows in ten.
FITTED = Efficiency(
    bandwidth=0.90,
    compute=0.75,
    step_overhead_s=4.0e-4,
    layer_overhead_s=5.0e-5,
    allreduce_latency_s=1.0e-5,
    spread=0.35,
    origin="fitted to public measurements on H200 and H100 (benchmarks/prediction.py)",
    sequence_overhead_s=2.0e-5,
    ttft_overhead_s=0.03,
    ttft_prefills=1.0,
    queue_share=0.05,  # these runs start all users at once, with ten requests each: c / 2 prefills for a tenth of them
    ttft_spread=0.9,
)
NARROW = FITTED._replace(compute=0.42)  # 8 and 4 bits: rounding activations, and attention that stays in 16 bits
IN_SOFTWARE = FITTED._replace(compute=0.25, spread=0.5)  # unpacking in the kernel costs arithmetic
UNPACKED = FITTED._replace(compute=0.50, spread=0.5)  # dense weight-only kernels: unpacked once, multiplied in 16 bits
LLAMA_CPP = FITTED._replace(bandwidth=0.75, compute=0.30, spread=0.5)
DOUBTFUL_SPREAD = 1.0
_NARROW_TYPES = frozenset({"fp8", "int8", "fp4"})

_RUNTIME_GIB = {"llama.cpp": 0.5}
_GRAPH_GIB = {"vllm": 0.6, "sglang": 0.8, "tensorrt-llm": 0.8}
_UNKNOWN_LINK_BYTES_S = 16e9  # PCIe 3.0 x16
_FP32_TO_TENSOR = 2.0  # lowest ratio among the boards whose rates are known


class Rate(NamedTuple):
    """What products are computed at: ``assumed`` where no source gives the rate of that type on that GPU."""

    flops: float
    dtype: str
    assumed: bool = False


def compute_flops(gpu: GpuSpec, scheme: SchemeSpec, state: State) -> float | None:
    """Dense FLOP/s of the type that the products are really computed in; 16 bit where the scheme is emulated.

    ``None`` where no sourced peak is known for any type it could use.
    """
    found = compute_rate(gpu, scheme, state)
    return None if found is None else found.flops


def compute_rate(gpu: GpuSpec, scheme: SchemeSpec, state: State) -> Rate | None:
    """``compute_flops`` with its type, and whether a source says so: where a GPU has tensor units whose rate nobody
    states, twice its FP32 rate is assumed.
    """
    wanted = scheme.compute if state.state == "native" else "bf16"
    for dtype in (wanted, "bf16", "fp16"):
        peak = gpu.peak_flops(dtype)
        if peak is not None:
            return Rate(peak.value, dtype)
    plain = gpu.peak_flops("fp32")
    if plain is None:
        return None
    if gpu.features.get("fp16_tensor"):
        return Rate(plain.value * _FP32_TO_TENSOR, wanted, assumed=True)
    return Rate(plain.value, "fp32")


def device(gpu: GpuSpec, flops: float) -> Device:
    """Base units of one GPU; the link is NVLink in one direction where the board has it, else PCIe."""
    link = _UNKNOWN_LINK_BYTES_S
    if gpu.nvlink_bytes_s is not None:
        link = gpu.nvlink_bytes_s.value / 2
    elif gpu.pcie is not None:
        link = gpu.pcie.value.bytes_s
    caches = [fact.value for fact in (gpu.l2_bytes, gpu.last_level_cache_bytes) if fact is not None]
    return Device(
        bandwidth_bytes_s=gpu.memory_bandwidth_bytes_s.value,
        flops=flops,
        link_bytes_s=link,
        cache_bytes=float(max(caches, default=0)),
    )


def floor_flops(gpu: GpuSpec, scheme: SchemeSpec, state: State) -> float | None:
    """The fastest rate any kernel for the scheme could reach, for floors: types no narrower than the activations, with
    whichever accumulation is faster. ``None`` where one that the GPU has is not sourced well enough to refuse.
    """
    if state.state not in ("native", "emulated"):
        return None
    bits = scheme.activation_bits if state.state == "native" else 16
    names = {"fp16", "bf16"} | ({"fp8", "int8"} if bits <= 8 else set()) | ({"fp4"} if bits <= 4 else set())
    has = {"fp16": "fp16_tensor", "bf16": "bf16", "fp8": "fp8", "int8": "int8_tensor", "fp4": "fp4"}
    peaks = []
    for name in names:
        peak = gpu.peak_flops(name)
        if peak is not None and peak.may_refuse:
            peaks.append(max(peak.value, faster.value if (faster := gpu.fp16_accumulate_flops.get(name)) else 0.0))
        elif peak is not None or gpu.features.get(has[name], True):
            return None
    return max(peaks, default=None)


def efficiency(engine: EngineFacts, state: State) -> Efficiency:
    """How near to the peak: less for types narrower than 16 bits, and where the kernel unpacks weights, as llama.cpp's
    always do.
    """
    scheme = query.scheme(state.scheme)
    if engine.id == "llama.cpp":
        return LLAMA_CPP
    if state.state == "unknown":
        return UNPACKED._replace(spread=DOUBTFUL_SPREAD)
    if state.state == "emulated":
        return UNPACKED if state.code == "WEIGHT_ONLY" and scheme.id != "mxfp4" else IN_SOFTWARE
    if scheme.activation_bits >= 16 > scheme.weight_bits:
        return IN_SOFTWARE if scheme.compute in _NARROW_TYPES else UNPACKED
    return NARROW if scheme.compute in _NARROW_TYPES else FITTED


def most_users(engine: EngineFacts) -> int:
    """Slots beyond which the engine's scheduler is not made to go: llama.cpp's server shares one context."""
    return {"llama.cpp": 16, "transformers": 16}.get(engine.id, 1024)


def reserves_whole_slots(engine: EngineFacts) -> bool:
    """True where every slot has room for the whole context from the start; the others page their KV cache."""
    return engine.id in ("llama.cpp", "transformers")


@cache
def splits(engine: str, max_gpus: int) -> tuple[Parallelism, ...]:
    """Ways to spread one replica, fewest GPUs first: llama.cpp gives each GPU layers, the others cut every matrix."""
    sizes = [n for n in (1, 2, 4, 8) if n <= max_gpus]
    if engine == "llama.cpp":
        return tuple(Parallelism(pipeline=n) for n in sizes)
    return tuple(Parallelism(tensor=n) for n in sizes) if engine != "transformers" else (Parallelism(),)


def micro_batches(engine: EngineFacts, split: Parallelism) -> int:
    """Parts of a batch that a pipeline's stages work on at the same time: llama.cpp's take turns."""
    return 1 if engine.id == "llama.cpp" else split.pipeline


def gpus_in_a_machine(gpu: GpuSpec) -> int:
    """How many of them one machine can hold: one where it is part of the machine, four boards for desktops."""
    if gpu.unified_memory or "laptop" in gpu.id:
        return 1
    return 4 if gpu.title.startswith(("GeForce", "Radeon RX", "Intel Arc")) else 8


def engine_memory(engine: EngineFacts, gpu: GpuSpec, split: Parallelism) -> EngineMemory:
    """How this engine takes this GPU's memory, by its defaults.

    The prefill budget is vLLM's default for the API server: 16,384 tokens from 160 GiB, 8,192 from 70 GiB, else 2,048.
    llama.cpp leaves 1 GiB by default (``-fitt``); the system needs about 4 GiB of a memory that it shares.
    """
    total = gpu.usable_memory_bytes
    tokens = 16384 if total >= 160 * GIB else 8192 if total >= 70 * GIB else 2048
    share = {"total": 0.92, "weights_and_kv": 0.88, "free_after_weights": 0.90}.get(engine.memory_share, 1.0)
    runtime = _RUNTIME_GIB.get(engine.id, 0.7) + (0.4 if split.tensor > 1 else 0.0)
    reserve = (4.0 if gpu.unified_memory else 0.0) + (1.0 if engine.memory_share == "none" else 0.0)
    return EngineMemory(
        share=share,
        share_of=engine.memory_share if engine.memory_share in ("weights_and_kv", "free_after_weights") else "total",
        runtime_bytes=runtime * GIB,
        graph_bytes=_GRAPH_GIB.get(engine.id, 0.0) * GIB,
        max_batched_tokens=512 if engine.id == "llama.cpp" else tokens,
        origin=f"{engine.id} defaults; graphs and runtime are estimates until it has been started once",
        reserve_bytes=reserve * GIB,
    )
