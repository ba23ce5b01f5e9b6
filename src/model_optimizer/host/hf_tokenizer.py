"""Tokenizer, chat template and special tokens of a Hugging Face folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.health import error, fine, note, warning
from model_optimizer.host.json_files import Fields, read_json, read_small_file
from model_optimizer.host.spec_checks import check_eos, check_template, counted, listed
from model_optimizer.records.base import canonical_json
from model_optimizer.records.model import HealthCheck

_MAX_TEMPLATE = 16 << 20


class Tokenizer(NamedTuple):
    """What serving needs to know of it."""

    template_digest: str | None
    bos: int | None
    eos: tuple[int, ...]
    checks: tuple[HealthCheck, ...]


class _Vocabulary(NamedTuple):
    """Ids of tokenizer.json: the highest of the plain vocabulary, and the added tokens by text."""

    highest: int
    size: int
    added: dict[str, int]


def read_tokenizer(
    folder: Path, *, bos: tuple[int, ...], eos: tuple[int, ...], vocab_size: int, rows: int | None
) -> Tokenizer:
    """Read the tokenizer's files. ``bos`` and ``eos`` are config.json's; generation_config.json wins over them.

    ``rows``: rows of the embedding, ``None`` where it is packed.
    """
    checks: list[HealthCheck] = []
    settings = _optional(folder / "tokenizer_config.json", checks)
    generation = _optional(folder / "generation_config.json", checks)
    vocabulary = _vocabulary(folder, checks)
    digest = _template_digest(folder, settings, checks)
    eos = generation.numbers("eos_token_id") or eos
    bos = generation.numbers("bos_token_id") or bos
    own_eos = _token_id(settings, "eos_token", vocabulary)
    eos = eos or ((own_eos,) if own_eos is not None else ())
    own_bos = _token_id(settings, "bos_token", vocabulary)
    if vocabulary is not None:
        checks.append(_fits(vocabulary, rows or vocab_size))
    checks.append(check_eos(eos, vocab_size))
    if digest is not None and own_eos is not None and own_eos not in eos:
        checks.append(
            warning(
                "tokenizer.special_tokens",
                f"the tokenizer ends a turn with token {own_eos} ({_token_text(settings, 'eos_token')}), but answers "
                f"stop at {listed(eos)} only: chats may run on",
                f"Add {own_eos} to eos_token_id in generation_config.json.",
            )
        )
    checks += _saved_by_newer(settings)
    checks.append(check_template(digest))
    first_bos = bos[0] if bos else own_bos
    return Tokenizer(digest, first_bos, eos, tuple(checks))


def _optional(path: Path, checks: list[HealthCheck]) -> Fields:
    """A JSON file that may be absent; damage is a finding, not the end."""
    if not path.exists():
        return Fields({}, path.name)
    try:
        return Fields(read_json(path), path.name)
    except CheckpointInvalid as broken:
        checks.append(error("tokenizer.files", broken.cause, broken.fix))
        return Fields({}, path.name)


def _vocabulary(folder: Path, checks: list[HealthCheck]) -> _Vocabulary | None:
    """Ids of tokenizer.json; ``None`` where the tokenizer is of another kind, missing or damaged."""
    path = folder / "tokenizer.json"
    if not path.exists():
        others = ("tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model")
        found = [name for name in others if (folder / name).is_file()] + sorted(
            p.name for p in folder.glob("*.tiktoken")
        )
        if found:
            checks.append(
                note("tokenizer.files", f"tokenizer in {found[0]}; its vocabulary was not compared with the embedding")
            )
        else:
            checks.append(
                error("tokenizer.files", "no tokenizer files: text cannot be turned into tokens",
                      "Copy tokenizer.json and tokenizer_config.json from the model's source into the folder.")
            )  # fmt: skip
        return None
    try:
        table = read_json(path)
    except CheckpointInvalid as broken:
        checks.append(error("tokenizer.files", broken.cause, broken.fix))
        return None
    checks.append(fine("tokenizer.files", "tokenizer.json present"))
    vocab = Fields(table, path.name).inner("model").table.get("vocab")
    ids = [v for v in vocab.values() if type(v) is int] if isinstance(vocab, dict) else []
    count = len(vocab) if isinstance(vocab, list | dict) else 0
    added_list = table.get("added_tokens")
    added = {
        token["content"]: token["id"]
        for token in (added_list if isinstance(added_list, list) else [])
        if isinstance(token, dict) and type(token.get("id")) is int and isinstance(token.get("content"), str)
    }
    special = set(added.values())
    highest = max((i for i in ids if i not in special), default=count - 1 if isinstance(vocab, list) else -1)
    return _Vocabulary(highest, max([highest, *special], default=-1) + 1, added)


def _fits(vocabulary: _Vocabulary, rows: int) -> HealthCheck:
    """Every token needs a row of the embedding; a few added ones beyond it are common and only fail when used."""
    if vocabulary.highest >= rows:
        return error(
            "tokenizer.vocabulary",
            f"the tokenizer has token ids up to {vocabulary.highest}, the embedding only {rows} rows: they do not "
            "belong together",
            "Take all tokenizer files from the model's source again.",
        )
    outside = [text for text, number in vocabulary.added.items() if number >= rows]
    if outside:
        return warning(
            "tokenizer.vocabulary",
            f"{counted(len(outside), 'added token')} beyond the embedding's {rows} rows ({listed(outside, 3)}): a "
            "prompt that contains one fails",
            "Harmless in text-only copies of multimodal models; otherwise resize the embedding to the tokenizer.",
        )
    spare = rows - vocabulary.size
    return fine(
        "tokenizer.vocabulary",
        f"{vocabulary.size} tokens fit the embedding's {rows} rows" + (f" ({spare} spare)" if spare else ""),
    )


def _token_text(settings: Fields, name: str) -> str | None:
    value = settings.table.get(name)
    return Fields(value, name).text("content") if isinstance(value, dict) else settings.text(name)


def _token_id(settings: Fields, name: str, vocabulary: _Vocabulary | None) -> int | None:
    text = _token_text(settings, name)
    return None if text is None or vocabulary is None else vocabulary.added.get(text)


def _template_digest(folder: Path, settings: Fields, checks: list[HealthCheck]) -> str | None:
    """SHA-256 of the chat template: chat_template.jinja, else chat_template.json, else tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    try:
        if file.exists():
            return hashlib.sha256(read_small_file(file, _MAX_TEMPLATE)).hexdigest()
        file = folder / "chat_template.json"
        template = read_json(file).get("chat_template") if file.exists() else None
    except CheckpointInvalid as broken:
        checks.append(error("chat_template", broken.cause, broken.fix))
        return None
    template = template or settings.table.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default") or (canonical_json(template).decode() if template else None)
    return hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) and template else None


def _saved_by_newer(settings: Fields) -> list[HealthCheck]:
    if settings.text("tokenizer_class") != "TokenizersBackend":
        return []
    return [
        warning(
            "tokenizer.class",
            "tokenizer_config.json was saved by transformers 5 (class TokenizersBackend): transformers 4 refuses it",
            'Set "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json; both versions read that.',
        )
    ]
