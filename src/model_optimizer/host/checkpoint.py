"""From a folder or a file to a ModelSpec: what the checkpoint is and whether it is whole, reading headers only.

``read_checkpoint`` never imports torch, never unpickles and never reads a tensor. Ids of the health checks:
``config.*`` (architecture, values, rope, layer_types, max_positions, custom_code), ``weights.*`` (shards, header, size,
offsets, dtype, index, duplicates, lfs_pointer, web_page, pickle, legacy_ggml, layers, shapes, tied, quantized,
unused_files), ``gguf.*`` (size, offsets, tensors, parts), ``tokenizer.*`` (files, vocabulary, special_tokens, class),
``chat_template``, ``files.*`` (permission, missing, read).
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.gguf_model import SPLIT_NAME, read_gguf
from model_optimizer.host.health import FETCH_AGAIN, error, fine, note, unreadable, warning
from model_optimizer.host.hf_config import Shape, read_shape
from model_optimizer.host.hf_quantization import Quantization, read_quantization
from model_optimizer.host.hf_tokenizer import Tokenizer, read_tokenizer
from model_optimizer.host.hf_weights import FolderWeights, find_shape, read_folder_weights, weight_files
from model_optimizer.host.json_files import read_json
from model_optimizer.host.spec_checks import CONFIG_FIX, attention_kind, check_layers, listed
from model_optimizer.host.weights import Weights, summarise
from model_optimizer.records.model import HealthCheck, ModelSpec

PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "scheduler.bin", "rng_state.pth")
_HUB_SNAPSHOT = re.compile(r"snapshots/([0-9a-f]{40})$")
# Families whose key projection is plainly kv_heads · head_dim rows, so that a contradiction is one.
_PLAIN_ATTENTION = frozenset(
    [
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen2_moe",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt_oss",
    ]
)


def read_checkpoint(path: Path) -> ModelSpec:
    """Describe the checkpoint at ``path``: a Hugging Face folder, a GGUF file, or a folder with one GGUF model.

    Raises CheckpointInvalid where no description can be formed. Everything else that is wrong is in ``health``;
    ``require_healthy`` turns that into an error.
    """
    try:
        with _collector_paused():
            if path.is_dir():
                return _read_folder(path)
            if path.exists():
                return _read_file(path)
    except OSError as caught:  # a folder that may not be listed
        problem = unreadable(path, caught)
        raise CheckpointInvalid(
            f"{path.name} cannot be read", cause=problem.message, fix=problem.fix or FETCH_AGAIN, evidence=(str(path),)
        ) from None
    raise CheckpointInvalid(
        f"{path} does not exist",
        cause="there is no file or folder of this name",
        fix="Check the path.",
        evidence=(str(path),),
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Headers of a large model are 100 000 small dicts without cycles; the collector would visit them again and again.

    Measured on DeepSeek-V3's 90 000 tensors: 0.1 to 0.3 s of 0.9 s.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def require_healthy(spec: ModelSpec) -> None:
    """Raise CheckpointInvalid for the first check of severity error; the others are its evidence."""
    problems = [check for check in spec.health if check.severity == "error"]
    if problems:
        first, *others = problems
        raise CheckpointInvalid(
            f"the checkpoint {Path(spec.source).name or spec.source} is damaged or incomplete",
            cause=first.message,
            fix=first.fix or FETCH_AGAIN,
            evidence=tuple(check.message for check in others),
        )


def _read_file(path: Path) -> ModelSpec:
    name = path.name.lower()
    if name.endswith(PICKLE_ENDINGS):
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise _pickle_refused(path.parent, [path.name])
    if name.endswith((".safetensors", ".safetensors.index.json")) or name == "config.json":
        raise CheckpointInvalid(
            f"{path.name} is one file of a checkpoint",
            cause="a Hugging Face checkpoint is a folder: weights mean nothing without config.json and tokenizer",
            fix=f"Give the folder: {path.parent}",
        )
    return read_gguf(path)


def _read_folder(folder: Path) -> ModelSpec:
    # iterdir and not glob, which is silent about a folder that may not be listed.
    gguf = sorted(path.name for path in folder.iterdir() if path.name.endswith(".gguf"))
    if not (folder / "config.json").exists() and not (folder / "config.json").is_symlink():
        if gguf:
            return _read_only_gguf(folder, gguf)
        raise _no_config(folder)
    if not weight_files(folder) and not (folder / "model.safetensors.index.json").exists():
        if gguf:
            return _read_only_gguf(folder, gguf)
        raise _no_weights(folder)
    return _read_hugging_face(folder)


def _read_only_gguf(folder: Path, names: list[str]) -> ModelSpec:
    models = [name for name in names if not name.lower().startswith("mmproj")]
    firsts = [name for name in models if not (match := SPLIT_NAME.match(name)) or int(match["number"]) == 1]
    wholes = firsts or models
    if len(wholes) == 1 or (not firsts and models):
        return read_gguf(folder / wholes[0])
    raise CheckpointInvalid(
        f"{folder.name} holds {len(wholes)} GGUF models",
        cause=listed(wholes),
        fix=f"Give the path of the one you want, for example {folder / wholes[0]}"
        if wholes
        else "Give the path of a model.",
    )


def _no_config(folder: Path) -> CheckpointInvalid:
    """Which of the usual mistakes a folder without config.json is."""
    if (folder / "adapter_config.json").exists():
        base = _base_model(folder)
        return CheckpointInvalid(
            f"{folder.name} is a LoRA adapter, not a model",
            cause=f"it has adapter_config.json and no config.json{f'; its base model is {base}' if base else ''}",
            fix="Merge it into its base model (PEFT: merge_and_unload, then save_pretrained) and give that folder.",
        )
    if (folder / "params.json").exists():
        return CheckpointInvalid(
            f"{folder.name} is in the publisher's own format",
            cause="it has params.json and no config.json (Meta's or Mistral's layout)",
            fix="Use the Hugging Face version of the same model: a folder with config.json and model*.safetensors.",
        )
    snapshots = sorted(folder.glob("snapshots/*/config.json"))
    if snapshots:
        return CheckpointInvalid(
            f"{folder.name} is a cache entry of the hub, not the model itself",
            cause="the files are in a folder below it",
            fix=f"Give {snapshots[0].parent}, or the model's hub name.",
        )
    pickles = _pickles(folder)
    if pickles:
        return _pickle_refused(folder, pickles)
    inner = sorted(path.parent.name for path in folder.glob("*/config.json"))
    return CheckpointInvalid(
        f"{folder.name or folder} holds no model",
        cause="there is no config.json and no GGUF file in it"
        + (f"; folders below it have one: {listed(inner)}" if inner else ""),
        fix="Give the folder that holds config.json and the safetensors files, or the path of a GGUF file.",
    )


def _base_model(folder: Path) -> str | None:
    try:
        value = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    except CheckpointInvalid:
        return None
    return value if isinstance(value, str) else None


def _no_weights(folder: Path) -> CheckpointInvalid:
    pickles = _pickles(folder)
    if pickles:
        return _pickle_refused(folder, pickles)
    if (folder / "adapter_config.json").exists():
        return _no_config(folder)
    others = sorted(
        p.name for pattern in ("consolidated*.safetensors", "*.h5", "*.msgpack", "*.onnx") for p in folder.glob(pattern)
    )
    return CheckpointInvalid(
        f"{folder.name or folder} has a config.json but no weights",
        cause=f"no model*.safetensors in it{f'; only {listed(others)}' if others else ''}",
        fix="Download the model's safetensors files into this folder.",
    )


def _pickles(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(PICKLE_ENDINGS))
    return [name for name in names if name not in _NOT_WEIGHTS]


def _pickle_refused(folder: Path, names: list[str]) -> CheckpointInvalid:
    target = f"{folder}-safetensors"
    return CheckpointInvalid(
        f"{folder.name or folder} holds its weights only as Python pickles",
        cause=f"{listed(names, 3)}: loading a pickle can run any code hidden in it, so it is never done here",
        fix=(
            "Get a safetensors version of the model. Or convert it on a machine you trust, with a load that accepts "
            f'tensors only: python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; '
            f"M.from_pretrained('{folder}', dtype='auto', weights_only=True).save_pretrained('{target}'); "
            f"T.from_pretrained('{folder}').save_pretrained('{target}')\""
        ),
        evidence=tuple(names[:10]),
    )


def _read_hugging_face(folder: Path) -> ModelSpec:
    config = read_json(folder / "config.json")
    shape = read_shape(config)
    files = read_folder_weights(folder)
    quantization = read_quantization(config, folder, files.tensors)
    weights = summarise(files.tensors, shape.num_layers, quantization.packing)
    embeddings = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
    rows = find_shape(files.tensors, *embeddings, expected=(shape.vocab_size, shape.hidden_size))
    tokenizer = read_tokenizer(
        folder, bos=shape.bos, eos=shape.eos, vocab_size=shape.vocab_size, rows=rows[0] if rows else None
    )
    incomplete = any(check.severity == "error" for check in files.checks)
    checks = [*shape.checks, *files.checks, *quantization.checks]
    if not incomplete:  # with files missing, these would only repeat it in other words
        checks += [check_layers(weights.layers, shape.num_layers), *_shapes(shape, files, rows), *_tied(shape, weights)]
        checks += _stored_type(config, weights, quantization)
    checks += tokenizer.checks
    return _spec(folder, shape, weights, quantization, tokenizer, checks)


def _spec(
    folder: Path,
    shape: Shape,
    weights: Weights,
    quantization: Quantization,
    tokenizer: Tokenizer,
    checks: list[HealthCheck],
) -> ModelSpec:
    kinds = shape.layers
    attention = attention_kind(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        num_layers=shape.num_layers,
        num_sliding=kinds.num_sliding,
        num_linear=kinds.num_linear,
        kv_lora_rank=shape.kv_lora_rank,
    )
    revision = _HUB_SNAPSHOT.search(folder.absolute().as_posix())
    return ModelSpec(
        source=str(folder), format="hf", revision=revision[1] if revision else None, architecture=shape.architecture,
        model_type=shape.model_type, num_layers=shape.num_layers, hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size, num_attention_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim, vocab_size=shape.vocab_size, max_position_embeddings=shape.rope.max_positions,
        attention=attention, sliding_window=kinds.window, num_sliding_layers=kinds.num_sliding,
        num_linear_layers=kinds.num_linear,
        kv_lora_rank=shape.kv_lora_rank, qk_rope_head_dim=shape.qk_rope_head_dim, moe=shape.moe,
        tie_word_embeddings=not weights.has("head") if shape.tied is None else shape.tied,
        weight_dtype=weights.dtype, weight_bytes=weights.num_bytes, num_parameters=weights.num_parameters,
        weight_classes=weights.classes, quantized_as=quantization.method, rope_theta=shape.rope.theta,
        rope_scaling=shape.rope.scaling, chat_template_digest=tokenizer.template_digest, bos_token_id=tokenizer.bos,
        eos_token_ids=tokenizer.eos, health=tuple(checks),
    )  # fmt: skip


def _shapes(shape: Shape, files: FolderWeights, rows: tuple[int, ...] | None) -> list[HealthCheck]:
    """config.json against the tensors that it must agree with."""
    problems = []
    if rows is not None and rows[0] != shape.vocab_size:
        problems.append(f"vocab_size is {shape.vocab_size}, the embedding has {rows[0]} rows")
    if rows is not None and rows[1] != shape.hidden_size:
        problems.append(f"hidden_size is {shape.hidden_size}, the embedding has {rows[1]} columns")
    expected = shape.num_kv_heads * shape.head_dim
    keys = find_shape(files.tensors, "self_attn.k_proj.weight", expected=(expected, shape.hidden_size))
    if keys is not None and keys[0] != expected and shape.model_type in _PLAIN_ATTENTION and not shape.kv_lora_rank:
        problems.append(
            f"{shape.num_kv_heads} KV heads of {shape.head_dim} make {expected}, the key projection has {keys[0]} rows"
        )
    if problems:
        return [error("weights.shapes", "config.json contradicts the weights: " + "; ".join(problems), CONFIG_FIX)]
    return [fine("weights.shapes", "config.json agrees with the shapes of the weights")] if rows is not None else []


def _tied(shape: Shape, weights: Weights) -> list[HealthCheck]:
    """Whether the output head is where config.json says it is."""
    has_head = weights.has("head")
    if shape.tied is False and not has_head:
        return [
            error(
                "weights.tied",
                "there is no output head (lm_head), and config.json says that the embedding is not used as one: "
                "the model would answer noise",
                'If the model shares them, set "tie_word_embeddings": true; otherwise lm_head.weight is missing.',
            )
        ]
    if shape.tied and has_head:
        return [
            note(
                "weights.tied",
                "config.json ties the output head to the embedding, yet one is stored; engines differ in which to use",
            )
        ]
    if shape.tied is None and not has_head:
        return [
            warning(
                "weights.tied",
                "config.json does not say whether the output head is tied, and there is none: it is taken as tied",
                'Set "tie_word_embeddings": true in config.json; readers differ in what they assume.',
            )
        ]
    return [fine("weights.tied", "output head tied to the embedding" if not has_head else "separate output head")]


def _stored_type(config: dict[str, object], weights: Weights, quantization: Quantization) -> list[HealthCheck]:
    """A note where the type in config.json is not the stored one: engines convert while loading."""
    named = config.get("torch_dtype") or config.get("dtype")
    stored = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}.get(weights.dtype)
    if quantization.method is None and isinstance(named, str) and stored and named.removeprefix("torch.") != stored:
        return [
            note(
                "weights.dtype",
                f"weights are stored as {stored}, config.json says {named}: engines convert while loading",
            )
        ]
    return []
