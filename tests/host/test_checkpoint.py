"""Checkpoints as a whole: what is read from healthy ones. Broken ones: test_checkpoint_broken.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from model_optimizer.records.model import ModelSpec, MoeSpec
from tests.host.checkpoints import FAMILIES, findings, gguf_file, hf_folder, write_safetensors

SHARD_2 = "model-00002-of-00003.safetensors"


def classes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    return {c.name: (c.parameters, c.weight_bytes) for c in spec.weight_classes}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [1, 3])
def test_healthy_checkpoints_have_no_findings(tmp_path: Path, family: str, shards: int) -> None:
    spec = read_checkpoint(hf_folder(tmp_path / "model", family, shards=shards))
    assert findings(spec) == {} and findings(spec, "warning") == {}
    require_healthy(spec)
    assert spec.format == "hf" and spec.source == str(tmp_path / "model") and spec.fingerprint is None
    assert spec.bos_token_id == 30 and spec.eos_token_ids == (31,)
    assert spec.chat_template_digest is not None and len(spec.chat_template_digest) == 64
    assert sum(c.parameters for c in spec.weight_classes) == spec.num_parameters
    assert sum(c.weight_bytes for c in spec.weight_classes) == spec.weight_bytes


def test_llama(tmp_path: Path) -> None:
    spec = read_checkpoint(hf_folder(tmp_path / "model", "llama"))
    assert (spec.architecture, spec.model_type, spec.attention) == ("LlamaForCausalLM", "llama", "gqa")
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size, spec.vocab_size) == (2, 8, 16, 32)
    assert (spec.num_attention_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 2)  # 8 / 4
    assert (spec.max_position_embeddings, spec.rope_theta, spec.rope_scaling) == (128, 500000.0, None)
    assert classes(spec) == {
        "embeddings": (32 * 8, 512),
        "head": (32 * 8, 512),
        "attention": (2 * (64 + 32 + 32 + 64), 768),
        "mlp": (2 * 3 * 16 * 8, 1536),
        "norms": (2 * 2 * 8 + 8, 80),
    }
    assert (spec.num_parameters, spec.weight_bytes, spec.weight_dtype) == (1704, 3408, "BF16")
    assert not spec.tie_word_embeddings and spec.quantized_as is None
    assert spec.kv_bytes_per_token() == 2 * 2 * 2 * 2 * 2  # K and V · layers · KV heads · head_dim · bytes


def test_mixtral(tmp_path: Path) -> None:
    spec = read_checkpoint(hf_folder(tmp_path / "model", "mixtral"))
    assert spec.moe == MoeSpec(num_experts=4, experts_per_token=2)
    assert classes(spec)["experts"] == (2 * 4 * 3 * 16 * 8, 6144)
    assert classes(spec)["router"] == (2 * 4 * 8, 128)
    assert "mlp" not in classes(spec)
    assert spec.num_parameters == 256 + 256 + 384 + 3072 + 64 + 40


def test_deepseek(tmp_path: Path) -> None:
    spec = read_checkpoint(hf_folder(tmp_path / "model", "deepseek"))
    assert (spec.attention, spec.kv_lora_rank, spec.qk_rope_head_dim, spec.head_dim) == ("mla", 4, 2, 4)
    assert spec.kv_bytes_per_token() == 2 * (4 + 2) * 2
    assert spec.moe == MoeSpec(num_experts=4, experts_per_token=2)
    assert (spec.max_position_embeddings, spec.rope_scaling) == (512, "yarn x4")
    one_attention = 6 * 8 + 16 * 6 + 6 * 8 + 16 * 4 + 8 * 8
    assert classes(spec)["attention"][0] == 2 * one_attention
    assert classes(spec)["mlp"][0] == 3 * 16 * 8 + 3 * 4 * 8  # the dense layer, and the shared expert
    assert classes(spec)["experts"][0] == 4 * 3 * 4 * 8
    assert classes(spec)["router"][0] == 4 * 8 + 4
    assert classes(spec)["other"][0] == 8 * 16 + 8 + 8 * 8  # the prediction layer beyond the model's two
    assert spec.num_layers == 2


def test_gemma3(tmp_path: Path) -> None:
    spec = read_checkpoint(hf_folder(tmp_path / "model", "gemma3"))
    assert (spec.attention, spec.sliding_window, spec.num_sliding_layers) == ("hybrid", 16, 10)
    assert (spec.num_kv_heads, spec.head_dim) == (1, 4)
    assert spec.tie_word_embeddings  # its config.json does not say so; the family does
    assert "head" not in classes(spec)
    full, sliding = 2 * 2 * 1 * 4 * 2, 2 * 10 * 1 * 4 * 2
    assert spec.kv_bytes_per_token() == full
    assert spec.kv_bytes(100) == full * 100 + sliding * 16


def test_qwen3(tmp_path: Path) -> None:
    spec = read_checkpoint(hf_folder(tmp_path / "model", "qwen3"))
    assert (spec.attention, spec.head_dim, spec.num_sliding_layers) == ("gqa", 4, 0)  # explicit, not 8 / 4
    assert classes(spec)["attention"][0] == 2 * (128 + 64 + 64 + 128)
    assert spec.tie_word_embeddings


def test_gpt_oss(tmp_path: Path) -> None:
    spec = read_checkpoint(hf_folder(tmp_path / "model", "gpt_oss"))
    assert (spec.attention, spec.sliding_window, spec.num_sliding_layers) == ("hybrid", 16, 1)
    assert (spec.quantized_as, spec.moe) == ("mxfp4", MoeSpec(num_experts=4, experts_per_token=2))
    packed = 4 * 64 * 16 + 4 * 32 * 16  # bytes a layer, two weights in each
    scales, biases = 4 * 64 + 4 * 32, 4 * 64 + 4 * 32
    assert classes(spec)["experts"] == (2 * (2 * packed + biases), 2 * (packed + scales + 2 * biases))


def test_extra_files_are_reported_and_not_counted(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", "llama", shards=3)
    write_safetensors(folder / "consolidated.safetensors", FAMILIES["llama"].tensors)
    write_safetensors(folder / "old.safetensors", FAMILIES["llama"].tensors)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    spec = read_checkpoint(folder)
    assert spec.num_parameters == 1704
    assert "old.safetensors" in findings(spec, "note")["weights.unused_files"].message
    require_healthy(spec)


def test_of_several_embeddings_the_language_models_counts(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", "llama")
    tensors = {"audio.embed_tokens.weight": ("BF16", (5, 3)), **FAMILIES["llama"].tensors}
    write_safetensors(folder / "model.safetensors", tensors)
    require_healthy(read_checkpoint(folder))


def test_shards_without_an_index_are_completed_by_their_numbers(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", "llama", shards=3)
    (folder / "model.safetensors.index.json").unlink()
    spec = read_checkpoint(folder)
    assert spec.num_parameters == 1704
    assert "weights.index" in findings(spec, "warning")
    (folder / SHARD_2).unlink()
    assert SHARD_2 in findings(read_checkpoint(folder))["weights.shards"].message


def test_revision_is_read_from_the_hub_cache(tmp_path: Path) -> None:
    commit = "0123456789" * 4
    folder = hf_folder(tmp_path / "models--org--name" / "snapshots" / commit)
    assert read_checkpoint(folder).revision == commit
    with pytest.raises(CheckpointInvalid, match="cache entry of the hub") as caught:
        read_checkpoint(tmp_path / "models--org--name")
    assert commit in caught.value.fix


def test_torch_is_not_imported() -> None:
    """In a process of its own: what other tests import does not count."""
    script = "import sys, model_optimizer.host.checkpoint; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_folder_with_gguf(tmp_path: Path) -> None:
    gguf_file(tmp_path / "model-q8_0.gguf")
    assert read_checkpoint(tmp_path).format == "gguf"
    gguf_file(tmp_path / "mmproj-model.gguf", general__type="mmproj")
    assert read_checkpoint(tmp_path).quantized_as == "q8_0"
    gguf_file(tmp_path / "model-q4_0.gguf")
    with pytest.raises(CheckpointInvalid, match="holds 2 GGUF models") as caught:
        read_checkpoint(tmp_path)
    assert "model-q4_0.gguf" in caught.value.fix
