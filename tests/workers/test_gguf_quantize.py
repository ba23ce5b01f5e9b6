"""The quantizer's choice of types against llama.cpp's published results, and its reading and writing of the format."""

from __future__ import annotations

import importlib.util
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from model_optimizer.records.candidate import TransformStep
from model_optimizer.transforms import gguf_quantize as transform

WORKERS = Path(__file__).parents[2] / "src" / "model_optimizer" / "workers"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, WORKERS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


worker = load("gguf_quantize")


def mix(scheme: str) -> dict[str, Any]:
    step = TransformStep(transform="gguf_quantize", options={"scheme": scheme})
    found: dict[str, Any] = transform.job(step, "in", "out").payload["mix"]
    return found


def llama(
    *, layers: int, hidden: int, ffn: int, kv: int, vocab: int, tied: bool = False, experts: int = 0
) -> list[dict[str, Any]]:
    """A llama model's tensors in the order of the file; shapes with the row length first, as GGUF has them."""
    shapes: dict[str, tuple[int, ...]] = {"output_norm.weight": (hidden,), "rope_freqs.weight": (64,)}
    if not tied:
        shapes["output.weight"] = (hidden, vocab)
    shapes["token_embd.weight"] = (hidden, vocab)
    for i in range(layers):
        shapes |= {
            f"blk.{i}.attn_k.weight": (hidden, kv), f"blk.{i}.attn_norm.weight": (hidden,),
            f"blk.{i}.attn_output.weight": (hidden, hidden), f"blk.{i}.attn_q.weight": (hidden, hidden),
            f"blk.{i}.attn_v.weight": (hidden, kv), f"blk.{i}.ffn_norm.weight": (hidden,),
        }  # fmt: skip
        stack, suffix = ((experts,), "_exps") if experts else ((), "")
        shapes |= {
            f"blk.{i}.ffn_down{suffix}.weight": (ffn, hidden, *stack),
            f"blk.{i}.ffn_gate{suffix}.weight": (hidden, ffn, *stack),
            f"blk.{i}.ffn_up{suffix}.weight": (hidden, ffn, *stack),
        }
        if experts:
            shapes[f"blk.{i}.ffn_gate_inp.weight"] = (hidden, experts)
    vectors = ("norm", "rope_freqs", "gate_inp")
    return [
        {"name": name, "shape": shape, "type": "F32" if any(v in name for v in vectors) else "F16"}
        for name, shape in shapes.items()
    ]


def meta(**fields: Any) -> dict[str, Any]:
    return {"arch": "llama", "layers": 32, "experts": 0, "gqa": 4} | fields


LLAMA_8B = llama(layers=32, hidden=4096, ffn=14336, kv=1024, vocab=128256)
SMOLLM2 = llama(layers=30, hidden=576, ffn=1536, kv=192, vocab=49152, tied=True)


def test_q4_k_m_of_an_8b_is_what_llama_cpp_prints() -> None:
    """The loader's log of the published file: "type f32: 66 tensors, q4_K: 193 tensors, q6_K: 33 tensors"."""
    chosen = worker.choose_types(LLAMA_8B, meta(), mix("q4_k_m"))
    assert Counter(chosen.values()) == {"F32": 66, "Q4_K": 193, "Q6_K": 33}
    assert chosen["output.weight"] == "Q6_K"
    assert chosen["token_embd.weight"] == "Q4_K"
    better = [i for i in range(32) if chosen[f"blk.{i}.ffn_down.weight"] == "Q6_K"]
    assert better == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]


def test_rows_not_divisible_by_256_fall_back() -> None:
    """Hidden size 576 of the demo model: q4_K → q5_0, q6_K → q8_0; its FFN of 1536 keeps the K types."""
    chosen = worker.choose_types(SMOLLM2, meta(layers=30, gqa=3), mix("q4_k_m"))
    assert chosen["token_embd.weight"] == "Q8_0"
    assert chosen["blk.0.attn_q.weight"] == "Q5_0"
    assert (chosen["blk.0.attn_v.weight"], chosen["blk.3.attn_v.weight"]) == ("Q8_0", "Q5_0")
    assert (chosen["blk.0.ffn_down.weight"], chosen["blk.3.ffn_down.weight"]) == ("Q6_K", "Q4_K")
    assert Counter(chosen.values()) == {"F32": 62, "Q8_0": 15, "Q5_0": 166, "Q6_K": 14, "Q4_K": 16}


@pytest.mark.parametrize(
    ("scheme", "fallback"), [("q5_k_m", "Q5_1"), ("q6_k", "Q8_0"), ("q3_k_m", "Q4_0"), ("iq4_xs", "IQ4_NL")]
)
def test_fallbacks(scheme: str, fallback: str) -> None:
    chosen = worker.choose_types(SMOLLM2, meta(layers=30, gqa=3), mix(scheme))
    assert chosen["blk.9.ffn_up.weight"] == fallback


def test_rows_not_divisible_by_32_stay_16_bit() -> None:
    odd = [{"name": "blk.0.ffn_up.weight", "shape": (100, 64), "type": "BF16"}]
    assert worker.choose_types(odd, meta(layers=1), mix("q4_k_m")) == {"blk.0.ffn_up.weight": "F16"}


def test_eight_experts_get_more_bits_in_attention() -> None:
    tensors = llama(layers=32, hidden=4096, ffn=14336, kv=1024, vocab=32000, experts=8)
    chosen = worker.choose_types(tensors, meta(experts=8), mix("q4_k_m"))
    parts = ("attn_v", "attn_k", "attn_output", "attn_q", "ffn_gate_inp")
    assert [chosen[f"blk.5.{part}.weight"] for part in parts] == ["Q8_0", "Q8_0", "Q5_K", "Q4_K", "F32"]
    assert (chosen["blk.0.ffn_down_exps.weight"], chosen["blk.5.ffn_down_exps.weight"]) == ("Q6_K", "Q4_K")


def test_a_70b_never_has_4_bits_in_attn_v() -> None:
    tensors = llama(layers=80, hidden=8192, ffn=28672, kv=1024, vocab=128256)
    chosen = worker.choose_types(tensors, meta(layers=80, gqa=8), mix("q4_k_m"))
    assert {chosen[f"blk.{i}.attn_v.weight"] for i in range(80)} == {"Q5_K", "Q6_K"}


@pytest.mark.parametrize("scheme", transform.MIXES)
def test_every_mix_names_types_that_exist(scheme: str) -> None:
    for tensors, facts in ((LLAMA_8B, meta()), (SMOLLM2, meta(layers=30, gqa=3))):
        chosen = worker.choose_types(tensors, facts, mix(scheme))
        assert set(chosen.values()) <= worker.TYPES.keys()
        for tensor in tensors:
            _, block, _ = worker.TYPES[chosen[tensor["name"]]]
            assert tensor["shape"][0] % block == 0


def test_predicted_and_chosen_sizes_agree() -> None:
    """The transform predicts from averages what the worker decides tensor by tensor."""
    from tests.transforms.test_gguf_quantize import LLAMA_8B as SPEC

    for scheme in transform.MIXES:
        chosen = worker.choose_types(LLAMA_8B, meta(), mix(scheme))
        exact = sum(worker.tensor_bytes(t["shape"], chosen[t["name"]]) for t in LLAMA_8B)
        step = TransformStep(transform="gguf_quantize", options={"scheme": scheme})
        assert transform.output_bytes(step, SPEC) == pytest.approx(exact, rel=0.015), scheme


# ------------------------------------------------------------------------------------------------ the file format


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(keys: list[bytes], tensors: Sequence[tuple[str, tuple[int, ...], int, int]], *, version: int = 3) -> bytes:
    infos = b"".join(
        text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, offset)
        for name, shape, kind, offset in tensors
    )
    return struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys)) + b"".join(keys) + infos


KEYS = [
    text("general.architecture") + struct.pack("<I", 8) + text("llama"),
    text("general.file_type") + struct.pack("<II", 4, 1),
    text("llama.block_count") + struct.pack("<II", 4, 2),
    text("llama.attention.head_count") + struct.pack("<II", 4, 8),
    text("llama.attention.head_count_kv") + struct.pack("<II", 4, 2),
    text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("ä") + text("<|end|>"),
    text("tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 0.5, 1.0, 2.0),
    text("split.count") + struct.pack("<IH", 2, 1),
]
TENSORS = [("token_embd.weight", (32, 3), 1, 0), ("blk.0.ffn_up.weight", (32, 2), 1, 192)]


def test_reads_a_header(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(KEYS, TENSORS))
    reader = worker.Reader(str(path))
    assert worker.describe(reader.values) == {"arch": "llama", "layers": 2, "experts": 0, "gqa": 4}
    assert [(t["name"], t["shape"], t["type"]) for t in reader.tensors] == [
        ("token_embd.weight", (32, 3), "F16"),
        ("blk.0.ffn_up.weight", (32, 2), "F16"),
    ]
    assert reader.data_start % 32 == 0


def test_metadata_is_copied_byte_for_byte(tmp_path: Path) -> None:
    source, copy = tmp_path / "in.gguf", tmp_path / "out.gguf"
    source.write_bytes(gguf(KEYS, TENSORS))
    reader = worker.Reader(str(source))
    chosen = {"token_embd.weight": "Q8_0", "blk.0.ffn_up.weight": "Q4_0"}
    head, sizes = worker.header(reader, reader.tensors, chosen, 15)
    copy.write_bytes(head)
    again = worker.Reader(str(copy))
    kept = [key for key in reader.raw if key not in ("general.file_type", "split.count")]
    assert [again.raw[key] for key in kept] == [reader.raw[key] for key in kept]
    assert again.values["general.file_type"] == 15
    assert again.values["general.quantization_version"] == 2
    assert "split.count" not in again.raw
    assert sizes == [3 * 34, 2 * 18]
    assert [t["offset"] for t in again.tensors] == [0, 128]  # padded to 32
    assert len(head) % 32 == 0


@pytest.mark.parametrize("data", [b"GGML" + b"\0" * 40, gguf(KEYS, TENSORS, version=1)])
def test_refuses_other_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(SystemExit, match="not a little-endian GGUF file"):
        worker.Reader(str(path))


@pytest.mark.parametrize("length", [20, 60, 200])
def test_refuses_a_header_that_is_cut_short(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(KEYS, TENSORS)[:length])
    with pytest.raises(SystemExit, match="cut short or damaged"):
        worker.Reader(str(path))


def test_refuses_quantized_sources(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(KEYS, [("blk.0.ffn_up.weight", (32, 2), 2, 0)]))
    reader = worker.Reader(str(path))
    with pytest.raises(SystemExit, match="quantized already"):
        worker.check_source(reader, reader.tensors, {"blk.0.ffn_up.weight": "Q8_0"})


def test_pieces_cover_every_row_once() -> None:
    tensor = {"name": "x", "shape": (4096, 14336, 3), "type": "F16"}
    found = worker.pieces(tensor)
    assert [first for first, _ in found] == [sum(rows for _, rows in found[:i]) for i in range(len(found))]
    assert sum(rows for _, rows in found) == 14336 * 3
