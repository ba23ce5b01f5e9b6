"""Tokenizer files, chat templates and special tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from model_optimizer.host.hf_tokenizer import Tokenizer, read_tokenizer
from tests.host.checkpoints import TEMPLATE, VOCAB, edit_json, write_tokenizer


def read(folder: Path, rows: int | None = VOCAB, eos: tuple[int, ...] = (31,)) -> Tokenizer:
    return read_tokenizer(folder, bos=(30,), eos=eos, vocab_size=VOCAB, rows=rows)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def severities(tokenizer: Tokenizer) -> dict[str, str]:
    return {check.id: check.severity for check in tokenizer.checks}


def test_generation_config_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 31], "bos_token_id": 3}')
    tokenizer = read(tmp_path)
    assert (tokenizer.bos, tokenizer.eos) == (3, (7, 31))


def test_tokens_of_the_tokenizer_where_nobody_else_names_them(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = read_tokenizer(tmp_path, bos=(), eos=(), vocab_size=VOCAB, rows=VOCAB)
    assert (tokenizer.bos, tokenizer.eos) == (30, (31,))
    edit_json(tmp_path / "tokenizer_config.json", eos_token={"content": "</s>", "special": True})
    assert read_tokenizer(tmp_path, bos=(), eos=(), vocab_size=VOCAB, rows=VOCAB).eos == (31,)


@pytest.mark.parametrize(
    ("settings", "files", "digest"),
    [
        ({"chat_template": "a"}, {}, sha("a")),
        ({"chat_template": "a"}, {"chat_template.jinja": "b"}, sha("b")),
        ({"chat_template": "a"}, {"chat_template.json": '{"chat_template": "c"}'}, sha("c")),
        ({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}, {}, sha("d")),
        ({"chat_template": []}, {}, None),
        ({"chat_template": ""}, {}, None),
        ({"chat_template": 3}, {}, None),
        ({}, {}, None),
    ],
)
def test_templates(tmp_path: Path, settings: dict[str, Any], files: dict[str, str], digest: str | None) -> None:
    write_tokenizer(tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", "chat_template", **settings)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    tokenizer = read(tmp_path)
    assert tokenizer.template_digest == digest
    assert severities(tokenizer)["chat_template"] == ("ok" if digest else "warning")


def test_template_digest_of_the_builder(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert read(tmp_path).template_digest == sha(TEMPLATE)


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "vocab.json", "qwen.tiktoken"])
def test_other_tokenizers_count(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    assert severities(read(tmp_path))["tokenizer.files"] == "note"


def test_spare_rows_are_fine_and_added_tokens_beyond_them_a_warning(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert "8 spare" in next(c.message for c in read(tmp_path, rows=40).checks if c.id == "tokenizer.vocabulary")
    warned = next(c for c in read(tmp_path, rows=31).checks if c.id == "tokenizer.vocabulary")
    assert warned.severity == "warning" and "1 added token beyond the embedding's 31 rows (</s>)" in warned.message
    assert severities(read(tmp_path, rows=29))["tokenizer.vocabulary"] == "error"


def test_unigram_vocabulary_is_a_list(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    edit_json(tmp_path / "tokenizer.json", model={"type": "Unigram", "vocab": [["a", -1.0]] * 30})
    assert severities(read(tmp_path))["tokenizer.vocabulary"] == "ok"
    assert severities(read(tmp_path, rows=29))["tokenizer.vocabulary"] == "error"
