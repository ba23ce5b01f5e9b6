"""What is said about broken checkpoints: one clear message for every way in which files go wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from tests.host.checkpoints import FAMILIES, edit_json, findings, hf_folder, write_tokenizer, write_weights

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab" * 32 + "\nsize 4976698672\n"
WEB_PAGE = "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>…</body></html>"
SHARD_2 = "model-00002-of-00003.safetensors"


# What is wrong but leaves a description: mutation, id of the check, words of its message.

Mutation = Callable[[Path], object]


def _unlink(name: str) -> Mutation:
    return lambda folder: (folder / name).unlink()


def _both(*mutations: Mutation) -> Mutation:
    def mutate(folder: Path) -> None:
        for one in mutations:
            one(folder)

    return mutate


def _settings(*remove: str, **changes: object) -> Mutation:
    return lambda folder: edit_json(folder / "tokenizer_config.json", *remove, **changes)


def _truncate(name: str, by: int) -> Mutation:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - by)


def _append(name: str, data: bytes) -> Mutation:
    def mutate(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(data)

    return mutate


def _write(name: str, text: str) -> Mutation:
    return lambda folder: (folder / name).write_text(text)


def _header_length(name: str, length: int) -> Mutation:
    def mutate(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.write(length.to_bytes(8, "little"))

    return mutate


def _config(*remove: str, **changes: object) -> Mutation:
    return lambda folder: edit_json(folder / "config.json", *remove, **changes)


def _index(change: Callable[[dict[str, str]], object]) -> Mutation:
    def mutate(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        table = json.loads(path.read_text())
        change(table["weight_map"])
        path.write_text(json.dumps(table))

    return mutate


def _lose_layer(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    for path in folder.glob("*.safetensors"):
        path.unlink()
    write_weights(folder, {n: t for n, t in FAMILIES["llama"].tensors.items() if ".layers.1." not in n})


def _lose_head(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    for path in folder.glob("*.safetensors"):
        path.unlink()
    write_weights(folder, {n: t for n, t in FAMILIES["llama"].tensors.items() if n != "lm_head.weight"})


def _dangle(folder: Path) -> None:
    (folder / SHARD_2).unlink()
    (folder / SHARD_2).symlink_to(folder / "gone")


ERRORS: list[tuple[str, Mutation, str, str]] = [
    ("missing shard", _unlink(SHARD_2), "weights.shards", f"1 of 3 shards missing: {SHARD_2}"),
    ("dangling link", _dangle, "weights.shards", "links to files that do not exist"),
    ("cut short", _truncate(SHARD_2, 10), "weights.size", "10 bytes are missing"),
    ("cut in header", lambda f: os.truncate(f / SHARD_2, 300), "weights.header", "is cut short: its header"),
    ("too long", _append(SHARD_2, b"12345"), "weights.size", "5 bytes after its last tensor"),
    ("empty", lambda f: os.truncate(f / SHARD_2, 0), "weights.header", "is empty"),
    ("header length too long", _header_length(SHARD_2, 10**7), "weights.header", "header has 10000000 bytes"),
    ("header length absurd", _header_length(SHARD_2, 2**62), "weights.header", "more than any"),
    ("header length wrong", _header_length(SHARD_2, 100), "weights.header", "not valid JSON"),
    ("header length zero", _header_length(SHARD_2, 0), "weights.header", "does not begin with"),
    ("LFS pointer", _write(SHARD_2, LFS_POINTER), "weights.lfs_pointer", "Git LFS pointer of 135 bytes"),
    ("web page", _write(SHARD_2, WEB_PAGE), "weights.web_page", "is a web page, not weights"),
    ("error message", _write(SHARD_2, '{"error":"Access denied"}'), "weights.web_page", "Access denied"),
    ("zeros", lambda f: (f / SHARD_2).write_bytes(bytes(4096)), "weights.header", "begins with zeros"),
    ("pickle renamed", lambda f: (f / SHARD_2).write_bytes(b"PK\x03\x04" + bytes(99)), "weights.pickle", "pickle"),
    ("folder as shard", _both(_unlink(SHARD_2), lambda f: (f / SHARD_2).mkdir()), "files.read", "is a folder"),
    ("listed but absent", _index(lambda m: m.update({"model.extra": SHARD_2})), "weights.index", "index but absent"),
    ("present but unlisted", _index(lambda m: m.pop("model.norm.weight")), "weights.index", "present but not listed"),
    ("index escapes", _index(lambda m: m.update({"x": "../../x.safetensors"})), "weights.index", "outside the folder"),
    ("index broken", _write("model.safetensors.index.json", "{"), "weights.index", "not valid JSON"),
    ("layer missing", _lose_layer, "weights.layers", "these have no tensors: 1"),
    ("head missing", _lose_head, "weights.tied", "no output head"),
    ("no architecture", _config("architectures"), "config.architecture", "no architecture (model_type is 'llama')"),
    ("heads", _config(num_key_value_heads=3), "config.values", "4 attention heads cannot be shared by 3 KV heads"),
    ("wrong vocabulary", _config(vocab_size=31), "weights.shapes", "vocab_size is 31, the embedding has 32 rows"),
    ("wrong width", _config(hidden_size=16), "weights.shapes", "hidden_size is 16"),
    ("wrong head_dim", _config(head_dim=4), "weights.shapes", "make 8, the key projection has 4 rows"),
    ("eos outside", _config(eos_token_id=99), "tokenizer.special_tokens", "99 is outside the vocabulary of 32"),
    ("no tokenizer", _unlink("tokenizer.json"), "tokenizer.files", "no tokenizer files"),
    ("broken tokenizer", _write("tokenizer.json", LFS_POINTER), "tokenizer.files", "Git LFS pointer"),
    ("other tokenizer", lambda f: write_tokenizer(f, size=40), "tokenizer.vocabulary", "up to 37, the"),
]  # fmt: skip


@pytest.mark.parametrize(("mutate", "check", "words"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_errors_leave_a_description(tmp_path: Path, mutate: Mutation, check: str, words: str) -> None:
    folder = hf_folder(tmp_path / "model", "llama", shards=3)
    mutate(folder)
    spec = read_checkpoint(folder)
    found = findings(spec)
    assert check in found, found
    assert words in " | ".join(c.message for c in spec.health if c.id == check)
    assert found[check].fix
    with pytest.raises(CheckpointInvalid, match="model is damaged or incomplete") as caught:
        require_healthy(spec)
    assert caught.value.exit_code == 2 and caught.value.cause and caught.value.fix


WARNINGS: list[tuple[str, Mutation, str, str]] = [
    ("unknown architecture", _config(architectures=["FooForCausalLM"]), "config.architecture", "'FooForCausalLM'"),
    ("transformers 5 rope", _config("rope_theta", rope_parameters={"rope_theta": 500000.0, "rope_type": "default"}),
     "config.rope", "saved by transformers 5"),
    ("rope contradiction", _config(rope_parameters={"rope_theta": 1e6}), "config.rope", "contradicts itself"),
    ("transformers 5 tokenizer", _settings(tokenizer_class="TokenizersBackend"),
     "tokenizer.class", "TokenizersBackend"),
    ("no template", _settings("chat_template"), "chat_template", "no chat template"),
    ("no end", _both(_config("eos_token_id"), _settings("eos_token")),
     "tokenizer.special_tokens", "no end-of-text token"),
    ("other end", _config(eos_token_id=5), "tokenizer.special_tokens", "ends a turn with token 31"),
    ("tie unsaid", _both(_lose_head, _config("tie_word_embeddings")), "weights.tied", "taken as tied"),
    ("no length", _config("max_position_embeddings", model_type="other"), "config.max_positions", "2048 tokens"),
    ("encoder-decoder", _config(is_encoder_decoder=True), "config.architecture", "encoder-decoder"),
]  # fmt: skip


@pytest.mark.parametrize(("mutate", "check", "words"), [w[1:] for w in WARNINGS], ids=[w[0] for w in WARNINGS])
def test_warnings_do_not_stop(tmp_path: Path, mutate: Mutation, check: str, words: str) -> None:
    folder = hf_folder(tmp_path / "model", "llama", shards=3)
    mutate(folder)
    spec = read_checkpoint(folder)
    found = findings(spec, "warning")
    assert check in found and words in found[check].message and found[check].fix
    require_healthy(spec)


def test_fix_for_rope_names_the_line_to_add(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", "llama")
    edit_json(folder / "config.json", "rope_theta", rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    spec = read_checkpoint(folder)
    assert '"rope_theta": 500000' in str(findings(spec, "warning")["config.rope"].fix)
    assert spec.rope_theta == 500000.0


# So broken that there is no description.


def _folder_of(*names: str) -> Mutation:
    def mutate(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name in names:
            (folder / name).write_text("{}")

    return mutate


def _only_pickles(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model-00001-of-00002.bin").write_bytes(b"\x80\x02}q\x00.")
    (folder / "training_args.bin").write_bytes(b"\x80\x02}q\x00.")


def _no_weights_at_all(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()


def _all_shards_are_pointers(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.write_text(LFS_POINTER)


FATAL: list[tuple[str, Mutation, str]] = [
    ("pickles only", _only_pickles, "only as Python pickles.*pytorch_model-00001.*can run any code"),
    ("pickles, no config", _folder_of("model.pt"), "only as Python pickles"),
    ("no weights", _no_weights_at_all, "has a config.json but no weights"),
    ("adapter", _folder_of("adapter_config.json", "adapter_model.safetensors"), "is a LoRA adapter, not a model"),
    ("publisher's format", _folder_of("params.json", "consolidated.safetensors"), "publisher's own format"),
    ("empty folder", _folder_of(), "holds no model"),
    ("parent of a model", _both(lambda f: hf_folder(f / "inner"), _unlink("config.json"), _no_weights_at_all), "inner"),
    ("all pointers", _all_shards_are_pointers, "cannot be read.*Git LFS pointer"),
    ("config is a page", _write("config.json", WEB_PAGE), "config.json is a web page"),
    ("config is no JSON", _write("config.json", "{'a': 1}"), "config.json is not valid JSON"),
    ("config is a list", _write("config.json", "[]"), "an object"),
    ("config is deep", _write("config.json", "[" * 100_000), "config.json is not valid JSON"),
    ("config without numbers", _write("config.json", '{"architectures": ["X"]}'), "num_hidden_layers is missing"),
    ("zero heads", _config(num_attention_heads=0), "num_attention_heads is '0', a number above zero"),
    ("negative size", _config(hidden_size=-8), "hidden_size is '-8'"),
    ("text for number", _config(num_hidden_layers="two"), "num_hidden_layers is 'two', a whole number"),
    ("a billion layers", _config(num_hidden_layers=10**9), "at most 10000"),
    ("more used than there are", _config(num_local_experts=4, num_experts_per_tok=8), "a number from 1 to 4"),
    ("no attention", _config(layer_types=["mamba", "mamba"]), "no attention layers"),
]  # fmt: skip


@pytest.mark.parametrize(("mutate", "words"), [f[1:] for f in FATAL], ids=[f[0] for f in FATAL])
def test_fatal(tmp_path: Path, mutate: Mutation, words: str) -> None:
    folder = hf_folder(tmp_path / "model", "llama", shards=3)
    mutate(folder)
    with pytest.raises(CheckpointInvalid) as caught:
        read_checkpoint(folder)
    error = caught.value
    text = f"{error.what}: {error.cause}"
    assert re.search(words, text, re.DOTALL), text
    assert error.fix and error.exit_code == 2


def test_way_out_of_pickles_is_one_command_that_loads_tensors_only(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", "llama")
    _only_pickles(folder)
    with pytest.raises(CheckpointInvalid) as caught:
        read_checkpoint(folder)
    assert "weights_only=True" in caught.value.fix and f"{folder}-safetensors" in caught.value.fix
    assert "training_args.bin" not in caught.value.cause
    with pytest.raises(CheckpointInvalid, match="only as Python pickles"):
        read_checkpoint(folder / "pytorch_model-00001-of-00002.bin")


def test_adapter_names_its_base_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(CheckpointInvalid) as caught:
        read_checkpoint(tmp_path)
    assert "org/base" in caught.value.cause and "Merge" in caught.value.fix


def test_single_files(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", "llama")
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(CheckpointInvalid, match="one file of a checkpoint") as caught:
            read_checkpoint(folder / name)
        assert str(folder) in caught.value.fix
    with pytest.raises(CheckpointInvalid, match="does not exist"):
        read_checkpoint(tmp_path / "nothing")


@contextmanager
def seen_by_nobody(folder: Path) -> Iterator[None]:
    """Root may read everything: look with the eyes of another user. Anybody else looks with their own."""
    if os.geteuid() != 0:
        yield
        return
    for parent in folder.parents[:-2]:
        if parent.is_relative_to(tempfile.gettempdir()) and str(parent) != tempfile.gettempdir():
            parent.chmod(parent.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_folder_that_may_not_be_listed(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "model", "llama")
    folder.chmod(0o311)
    with seen_by_nobody(folder), pytest.raises(CheckpointInvalid, match="model cannot be read") as caught:
        read_checkpoint(folder)
    folder.chmod(0o755)
    assert "permission denied" in caught.value.cause


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
@pytest.mark.parametrize("name", ["config.json", SHARD_2, "tokenizer.json", "model.safetensors.index.json"])
def test_forbidden_files_are_named(tmp_path: Path, name: str) -> None:
    folder = hf_folder(tmp_path / "model", "llama", shards=3)
    (folder / name).chmod(0)
    with seen_by_nobody(folder), pytest.raises(CheckpointInvalid) as caught:
        require_healthy(read_checkpoint(folder))
    assert f"{name} may not be read: permission denied" in caught.value.cause
    assert "chmod" in caught.value.fix
