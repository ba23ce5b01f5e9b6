"""GGUF files as models: shapes, sizes, recipes, split files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from model_optimizer.records.model import MoeSpec
from tests.host.checkpoints import Tensors, findings, gguf_file, gguf_metadata, gguf_tensors, write_gguf


def q8(weights: int) -> int:
    return weights // 32 * 34


def test_llama(tmp_path: Path) -> None:
    spec = read_checkpoint(gguf_file(tmp_path / "x.gguf"))
    require_healthy(spec)
    assert findings(spec, "warning") == {}
    assert (spec.format, spec.architecture, spec.attention, spec.quantized_as) == ("gguf", "llama", "gqa", "q8_0")
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size, spec.vocab_size) == (2, 64, 128, 32)
    assert (spec.num_attention_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 16)
    assert (spec.max_position_embeddings, spec.rope_theta) == (128, 500000.0)
    attention, mlp, norms = 2 * (64 * 64 * 2 + 32 * 64 * 2), 2 * 3 * 64 * 128, 2 * 2 * 64 + 64
    assert {c.name: (c.parameters, c.weight_bytes) for c in spec.weight_classes} == {
        "embeddings": (2048, q8(2048)), "head": (2048, q8(2048)), "attention": (attention, q8(attention)),
        "mlp": (mlp, q8(mlp)), "norms": (norms, norms * 4),
    }  # fmt: skip
    assert spec.num_parameters == 4096 + attention + mlp + norms and spec.weight_dtype == "Q8_0"
    assert (spec.bos_token_id, spec.eos_token_ids, spec.tie_word_embeddings) == (30, (31,), False)
    assert spec.chat_template_digest is not None


def read(tmp_path: Path, tensors: Tensors | None = None, architecture: str = "llama", **changes: Any) -> Any:
    metadata = gguf_metadata(architecture, **changes)
    return read_checkpoint(write_gguf(tmp_path / "x.gguf", metadata, tensors or gguf_tensors()))


def test_tied_head_and_end_tokens(tmp_path: Path) -> None:
    spec = read(tmp_path, gguf_tensors(head=False), tokenizer__ggml__eot_token_id=29, tokenizer__ggml__eom_token_id=31)
    assert spec.tie_word_embeddings and spec.eos_token_ids == (31, 29)


def test_mixture_of_experts(tmp_path: Path) -> None:
    tensors = {name: value for name, value in gguf_tensors().items() if ".ffn_" not in name or "norm" in name}
    for layer in range(2):
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = ("F32", (8, 64))
        for part, shape in (("gate", (8, 32, 64)), ("up", (8, 32, 64)), ("down", (8, 64, 32))):
            tensors[f"blk.{layer}.ffn_{part}_exps.weight"] = ("Q8_0", shape)
    spec = read(tmp_path, tensors, llama__expert_count=8, llama__expert_used_count=2)
    require_healthy(spec)
    assert spec.moe == MoeSpec(num_experts=8, experts_per_token=2)
    parameters = {c.name: c.parameters for c in spec.weight_classes}
    assert parameters["experts"] == 2 * 3 * 8 * 32 * 64 and parameters["router"] == 2 * 8 * 64


def test_latent_attention(tmp_path: Path) -> None:
    spec = read(
        tmp_path, None, "deepseek2", deepseek2__attention__kv_lora_rank=32, deepseek2__attention__key_length=48,
        deepseek2__attention__key_length_mla=24, deepseek2__attention__head_count_kv=1,
    )  # fmt: skip
    assert (spec.attention, spec.kv_lora_rank, spec.qk_rope_head_dim, spec.head_dim) == ("mla", 32, 16, 24)
    assert spec.num_kv_heads == 4
    assert spec.kv_bytes_per_token() == 2 * (32 + 16) * 2


@pytest.mark.parametrize(
    ("architecture", "layers", "sliding"), [("gemma3", 12, 10), ("gemma2", 4, 2), ("gpt-oss", 4, 2), ("phi3", 4, 0)]
)
def test_sliding_layers(tmp_path: Path, architecture: str, layers: int, sliding: int) -> None:
    changes = {f"{architecture}__block_count": layers, f"{architecture}__attention__sliding_window": 16}
    spec = read(tmp_path, gguf_tensors(layers=layers), architecture, **changes)
    require_healthy(spec)
    assert spec.num_sliding_layers == sliding
    assert spec.attention == ("hybrid" if sliding else "gqa")
    assert spec.sliding_window == (16 if sliding else None)


def test_sliding_pattern_by_layer(tmp_path: Path) -> None:
    spec = read(tmp_path, None, "mimo2", mimo2__attention__sliding_window=16,
                mimo2__attention__sliding_window_pattern=[True, False])  # fmt: skip
    assert (spec.num_sliding_layers, spec.attention) == (1, "hybrid")


def test_values_by_layer(tmp_path: Path) -> None:
    """Hybrid models write zero KV heads for layers without a KV cache."""
    spec = read(tmp_path, None, "jamba", jamba__attention__head_count_kv=[0, 2], jamba__feed_forward_length=[64, 128])
    assert (spec.num_kv_heads, spec.num_linear_layers, spec.intermediate_size) == (2, 1, 128)
    assert spec.attention == "hybrid"
    assert spec.kv_bytes_per_token() == 2 * 1 * 2 * 16 * 2  # K and V of the one layer that keeps them


def test_prediction_layers_are_not_the_models(tmp_path: Path) -> None:
    spec = read(tmp_path, gguf_tensors(layers=3), "glm4moe", glm4moe__block_count=3, glm4moe__nextn_predict_layers=1)
    require_healthy(spec)
    assert spec.num_layers == 2 and "other" in {c.name for c in spec.weight_classes}


@pytest.mark.parametrize(
    ("file_type", "dtype", "quantized_as", "severity"),
    [
        (0, "F32", None, "note"), (1, "F16", None, "note"), (32, "BF16", None, "note"),
        (2, "Q4_0", "q4_0", "note"), (3, "Q4_1", "q4_1", "note"), (7, "Q8_0", "q8_0", "note"),
        (None, "Q8_0", "q8_0", "note"), (1024 + 7, "Q8_0", "q8_0", "note"), (999, "Q8_0", "q8_0", "note"),
        (15, "Q8_0", "q8_0", "warning"), (1, "Q8_0", "q8_0", "warning"),
    ],
)  # fmt: skip
def test_recipes(tmp_path: Path, file_type: int | None, dtype: str, quantized_as: str | None, severity: str) -> None:
    spec = read(tmp_path, gguf_tensors(dtype=dtype), general__file_type=file_type)
    assert spec.quantized_as == quantized_as and spec.weight_dtype == dtype
    assert next(c.severity for c in spec.health if c.id == "weights.quantized") == severity


def test_k_quants_are_mixtures(tmp_path: Path) -> None:
    tensors = gguf_tensors(layers=1)
    tensors = {name: (dtype, (256, 256) if len(shape) > 1 else shape) for name, (dtype, shape) in tensors.items()}
    tensors["blk.0.ffn_down.weight"] = ("Q6_K", (256, 256))
    tensors["blk.0.attn_q.weight"] = ("Q4_K", (256, 256))
    spec = read(tmp_path, tensors, llama__block_count=1, general__file_type=15)
    assert spec.quantized_as == "q4_k_m"
    sizes = {c.name: c.weight_bytes for c in spec.weight_classes}
    assert sizes["attention"] == 256 * 144 + 3 * q8(256 * 256) and sizes["mlp"] == 256 * 210 + 2 * q8(256 * 256)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general__architecture": None}, "general.architecture is missing"),
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__block_count": 0}, "llama.block_count is 0"),
        ({"llama__block_count": 2**31}, "which cannot be"),
        ({"llama__attention__head_count": 0}, "llama.attention.head_count is 0"),
        ({"llama__context_length": "long"}, "llama.context_length is missing"),
        ({"general__type": "adapter"}, "a LoRA adapter"),
        ({"general__type": "imatrix"}, "an importance matrix"),
        ({"general__architecture": "clip"}, "the image or audio part"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointInvalid) as caught:
        read(tmp_path, **changes)
    assert words in caught.value.cause and caught.value.fix


@pytest.mark.parametrize(
    ("changes", "drop", "check", "words"),
    [
        ({"tokenizer__ggml__model": None}, "", "tokenizer.files", "holds no tokenizer"),
        ({"tokenizer__ggml__tokens": ["a"] * 33}, "", "tokenizer.vocabulary", "has 33 tokens, the embedding 32 rows"),
        ({"tokenizer__ggml__eos_token_id": 77}, "", "tokenizer.special_tokens", "77 is outside"),
        ({"llama__attention__head_count_kv": 3}, "", "config.values", "cannot be shared by 3"),
        ({"llama__block_count": 3}, "", "weights.layers", "no tensors: 2"),
        ({}, "blk.1.", "weights.layers", "no tensors: 1"),
    ],
)
def test_errors(tmp_path: Path, changes: dict[str, Any], drop: str, check: str, words: str) -> None:
    tensors = {name: value for name, value in gguf_tensors().items() if not drop or not name.startswith(drop)}
    spec = read(tmp_path, tensors, **changes)
    assert words in findings(spec)[check].message
    with pytest.raises(CheckpointInvalid):
        require_healthy(spec)


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"tokenizer__chat_template": None}, "chat_template"),
        ({"tokenizer__ggml__eos_token_id": None}, "tokenizer.special_tokens"),
    ],
)
def test_warnings(tmp_path: Path, changes: dict[str, Any], check: str) -> None:
    spec = read(tmp_path, **changes)
    assert check in findings(spec, "warning")
    require_healthy(spec)


def test_unknown_architecture_is_a_warning(tmp_path: Path) -> None:
    spec = read(tmp_path, None, "newmodel")
    assert "'newmodel'" in findings(spec, "warning")["config.architecture"].message


def split(folder: Path) -> list[Path]:
    """The Llama-like file in three parts; only the first carries the metadata."""
    tensors = gguf_tensors()
    names = list(tensors)
    paths = []
    for number in range(3):
        own = {name: tensors[name] for name in names[number * 7 : (number + 1) * 7]}
        metadata = gguf_metadata() if number == 0 else {"general.architecture": "llama"}
        metadata |= {"split.no": number, "split.count": 3, "split.tensors.count": len(tensors)}
        paths.append(write_gguf(folder / f"m-{number + 1:05d}-of-00003.gguf", metadata, own))
    return paths


def test_split_files_are_one_model(tmp_path: Path) -> None:
    first, _, third = split(tmp_path)
    whole = read_checkpoint(gguf_file(tmp_path / "whole.gguf"))
    for path in (first, third):
        spec = read_checkpoint(path)
        require_healthy(spec)
        assert spec.source == str(first) and spec.weight_classes == whole.weight_classes
    (tmp_path / "whole.gguf").unlink()
    assert read_checkpoint(tmp_path).num_parameters == whole.num_parameters


def test_split_files_with_a_part_missing_broken_or_renamed(tmp_path: Path) -> None:
    first, second, third = split(tmp_path)
    second.write_bytes(second.read_bytes()[:-5])
    assert "gguf.size" in findings(read_checkpoint(first))
    second.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "Git LFS pointer" in findings(read_checkpoint(first))["gguf.parts"].message
    second.unlink()
    spec = read_checkpoint(first)
    assert findings(spec)["gguf.parts"].message == "1 of 3 parts are missing: m-00002-of-00003.gguf"
    renamed = first.rename(tmp_path / "model.gguf")
    assert "was renamed" in findings(read_checkpoint(renamed))["gguf.parts"].message
    with pytest.raises(CheckpointInvalid, match="its first part is missing"):
        read_checkpoint(third)


def test_split_files_of_different_models(tmp_path: Path) -> None:
    first, second, _ = split(tmp_path)
    write_gguf(second, {"general.architecture": "llama"}, {"blk.0.attn_q.weight": ("F32", (2, 2))})
    assert "do not belong together" in findings(read_checkpoint(first))["gguf.parts"].message
    path = gguf_file(tmp_path / "other-00001-of-00002.gguf", split__count=4)
    assert "4 parts inside, 2 in its name" in findings(read_checkpoint(path))["gguf.parts"].message
