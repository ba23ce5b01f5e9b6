"""How checkpoints say that they are quantized, and what is said where they do not."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from model_optimizer.host.hf_quantization import read_quantization
from model_optimizer.host.safetensors import TensorInfo
from model_optimizer.host.weights import Packing
from tests.host.checkpoints import FAMILIES, edit_json, findings, hf_folder, write_weights

PACK = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}}


@pytest.mark.parametrize(
    ("config", "method", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "gptq", 4),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "awq", 4),
        ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, "fp8", 8),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": PACK},
            "compressed-tensors",
            4,
        ),
        ({"config_groups": PACK, "format": "pack-quantized"}, "compressed-tensors", 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt", 4),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "bitsandbytes", 4),
        ({"load_in_8bit": True}, "bitsandbytes", 8),
        ({"quant_method": "mxfp4"}, "mxfp4", 4),
        ({"quant_method": "intel/auto-round", "bits": 2}, "auto-round", 2),
        ({"quant_method": "hqq"}, "hqq", None),
        ({"something": 1}, "unknown", None),
        ({"quant_method": "gptq", "bits": -4}, "gptq", None),
        ({"quant_method": "gptq", "bits": 1e-9}, "gptq", None),
    ],
)
def test_methods(tmp_path: Path, config: dict[str, Any], method: str, bits: float | None) -> None:
    found = read_quantization({"quantization_config": config}, tmp_path, ())
    assert (found.method, found.packing) == (method, Packing(method, bits))
    assert [check.severity for check in found.checks] == ["note"]


@pytest.mark.parametrize(
    ("config", "files", "method"),
    [
        ({"text_config": {"quantization_config": {"quant_method": "gptq", "bits": 4}}}, {}, "gptq"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, {}, "compressed-tensors"),
        ({"quantization": {"group_size": 64, "bits": 4}}, {}, "mlx"),
        (
            {},
            {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}},
            "modelopt",
        ),
        ({}, {"quantize_config.json": {"bits": 4, "group_size": 128}}, "gptq"),
        ({}, {"quant_config.json": {"w_bit": 4, "q_group_size": 128}}, "awq"),
        ({"quantization_config": None}, {}, None),
        ({"quantization_config": {}}, {}, None),
        ({"quantization_config": "gptq"}, {}, None),
    ],
)
def test_places(tmp_path: Path, config: dict[str, Any], files: dict[str, Any], method: str | None) -> None:
    for name, table in files.items():
        (tmp_path / name).write_text(json.dumps(table))
    assert read_quantization(config, tmp_path, ()).method == method


def test_gptq_checkpoint(tmp_path: Path) -> None:
    """Llama-like, its linear layers in 4 bit with group size 8: the same parameters in fewer bytes."""
    folder = hf_folder(tmp_path / "model", "llama")
    tensors = {}
    for name, (dtype, shape) in FAMILIES["llama"].tensors.items():
        if "proj" not in name:
            tensors[name] = (dtype, shape)
            continue
        out, into = shape
        stem = name.removesuffix(".weight")
        tensors |= {
            f"{stem}.qweight": ("I32", (into // 8, out)), f"{stem}.qzeros": ("I32", (into // 8, -(-out // 8))),
            f"{stem}.scales": ("F16", (into // 8, out)), f"{stem}.g_idx": ("I32", (into,)),
        }  # fmt: skip
    write_weights(folder, tensors)
    spec = read_checkpoint(folder)
    assert "nothing says how the checkpoint is quantized" in findings(spec)["weights.quantized"].message
    edit_json(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 8})
    spec = read_checkpoint(folder)
    require_healthy(spec)
    assert (spec.quantized_as, spec.num_parameters) == ("gptq", 1704)
    assert spec.weight_bytes < 3408 + 2000


def test_eight_bit_weights_without_a_word(tmp_path: Path) -> None:
    narrow = TensorInfo("model.layers.0.mlp.up_proj.weight", "F8_E4M3", (4, 4), 16, 16)
    (check,) = read_quantization({}, tmp_path, [narrow]).checks
    assert check.severity == "warning" and "stored as F8_E4M3" in check.message


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
_QUANTIZATION = st.dictionaries(
    st.sampled_from(
        ["quant_method", "bits", "group_size", "config_groups", "quant_algo", "load_in_4bit", "format", "producer"]
    ),
    _JSON,
)
_TOKENIZER = st.dictionaries(st.sampled_from(["model", "added_tokens", "version"]), _JSON)
_SETTINGS = st.dictionaries(st.sampled_from(["chat_template", "eos_token", "bos_token", "tokenizer_class"]), _JSON)
_INDEX = st.dictionaries(st.sampled_from(["weight_map", "metadata"]), _JSON)


@settings(max_examples=150, deadline=None)
@given(_QUANTIZATION, _TOKENIZER, _SETTINGS, _INDEX, st.booleans())
def test_any_json_in_any_file(quantization: Any, tokenizer: Any, settings: Any, index: Any, sharded: bool) -> None:
    """Whatever the files beside the weights hold, the outcome is a description or a clear error."""
    with tempfile.TemporaryDirectory() as name:
        folder = hf_folder(Path(name) / "m", "llama", quantization_config=quantization)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer}))
        if sharded:
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        try:
            require_healthy(read_checkpoint(folder))
        except CheckpointInvalid as error:
            assert error.cause and error.fix
