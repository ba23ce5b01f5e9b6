"""Fingerprints: the same content has the same one, any change another, and nothing is hashed twice."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host import fingerprint as module
from model_optimizer.host.fingerprint import files_that_matter, fingerprint
from tests.host.checkpoints import gguf_file, hf_folder, write_gguf


class Emitted:
    """Records what was reported."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, kind: str, **fields: object) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.events.append((kind, fields))


def settle(folder: Path) -> None:
    """Make files look old enough to be remembered."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            os.utime(path, (1_700_000_000, 1_700_000_000))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = hf_folder(tmp_path / "model", shards=3)
    settle(folder)
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were really read."""
    names: list[str] = []
    real = module._hash_file

    def spy(path: Path, *args: Any) -> str:
        names.append(path.name)
        return real(path, *args)

    monkeypatch.setattr(module, "_hash_file", spy)
    return names


def test_definition(folder: Path, tmp_path: Path) -> None:
    """SHA-256 over lines of hash, two spaces, name, sorted by name."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir(), key=lambda path: path.name)
    ]
    assert len(lines) == 7
    assert fingerprint(folder, tmp_path / "memo.json") == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_nothing_is_read_twice(folder: Path, tmp_path: Path, hashed: list[str]) -> None:
    memo = tmp_path / "deep" / "memo.json"
    first = fingerprint(folder, memo)
    assert len(hashed) == 7
    assert fingerprint(folder, memo) == first and len(hashed) == 7
    (folder / "config.json").write_text("{}")
    assert fingerprint(folder, memo) != first
    assert hashed[7:] == ["config.json"]


def test_the_place_does_not_matter(folder: Path, tmp_path: Path) -> None:
    first = fingerprint(folder, tmp_path / "memo.json")
    moved = folder.rename(tmp_path / "elsewhere")
    assert fingerprint(moved, tmp_path / "memo.json") == first


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "chat_template.jinja").write_text("x"),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "config.json").rename(folder / "config2.json"),
        lambda folder: (folder / "modeling_x.py").write_text("pass"),
    ],
)
def test_every_file_that_matters_counts(folder: Path, tmp_path: Path, change: Callable[[Path], object]) -> None:
    first = fingerprint(folder, tmp_path / "memo.json")
    change(folder)
    assert fingerprint(folder, tmp_path / "memo.json") != first


def test_files_that_do_not_matter(folder: Path, tmp_path: Path) -> None:
    first = fingerprint(folder, tmp_path / "memo.json")
    for name in ("README.md", "LICENSE.txt", "pytorch_model.bin", ".gitattributes", "consolidated.safetensors"):
        (folder / name).write_text("x")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    assert fingerprint(folder, tmp_path / "memo.json") == first


def test_same_size_and_content_swapped_between_files(folder: Path, tmp_path: Path) -> None:
    (folder / "a.txt").write_text("1")
    (folder / "b.txt").write_text("2")
    first = fingerprint(folder, tmp_path / "memo.json")
    (folder / "a.txt").write_text("2")
    (folder / "b.txt").write_text("1")
    assert fingerprint(folder, tmp_path / "memo.json") != first


def test_gguf_files_are_the_same_under_any_name(tmp_path: Path) -> None:
    first = fingerprint(gguf_file(tmp_path / "a.gguf"), tmp_path / "memo.json")
    assert fingerprint(gguf_file(tmp_path / "b.gguf"), tmp_path / "memo.json") == first


def test_split_gguf_files_count_as_a_whole(tmp_path: Path) -> None:
    parts = [gguf_file(tmp_path / f"m[1]-{number:05d}-of-00002.gguf") for number in (1, 2)]
    gguf_file(tmp_path / "other-00001-of-00002.gguf")
    assert set(files_that_matter(parts[0])) == {part.name for part in parts}
    first = fingerprint(parts[0], tmp_path / "memo.json")
    write_gguf(parts[1], {"general.architecture": "llama"}, {"t": ("F32", (1,))})
    assert fingerprint(parts[0], tmp_path / "memo.json") != first


def test_young_files_are_not_remembered(tmp_path: Path, hashed: list[str]) -> None:
    """A file written again within a tick of the clock keeps its modification time."""
    path = gguf_file(tmp_path / "x.gguf")
    fingerprint(path, tmp_path / "memo.json")
    fingerprint(path, tmp_path / "memo.json")
    assert hashed == ["x.gguf", "x.gguf"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"files": 3}', '{"files": {"KEY": 1}}', '{"files": {"KEY": [1, 2, 3, "x"]}}']
)
def test_damaged_memo_is_ignored_and_replaced(folder: Path, tmp_path: Path, text: str, hashed: list[str]) -> None:
    memo = tmp_path / "memo.json"
    first = fingerprint(folder, tmp_path / "other.json")
    memo.write_text(text.replace("KEY", str(folder / "config.json")))
    assert fingerprint(folder, memo) == first
    assert len(orjson.loads(memo.read_bytes())["files"]) >= 7
    hashed.clear()
    assert fingerprint(folder, memo) == first and hashed == []


def test_a_forged_hash_needs_the_same_file(folder: Path, tmp_path: Path) -> None:
    """The memo is believed only for the same size, time and inode."""
    memo = tmp_path / "memo.json"
    first = fingerprint(folder, memo)
    copy = folder / "copy.json"
    copy.write_bytes((folder / "config.json").read_bytes())
    settle(folder)
    copy.replace(folder / "config.json")  # same content, size and time; another inode
    assert fingerprint(folder, memo) == first


def test_memo_that_cannot_be_written_costs_only_time(folder: Path, tmp_path: Path) -> None:
    emitted = Emitted()
    (tmp_path / "file").write_text("")
    assert len(fingerprint(folder, tmp_path / "file" / "memo.json", emit=emitted)) == 64
    assert "could not be remembered" in str(emitted.events[-1])


def test_progress_ends_at_the_total(folder: Path, tmp_path: Path) -> None:
    emitted = Emitted()
    fingerprint(folder, tmp_path / "memo.json", emit=emitted)
    kind, fields = emitted.events[-1]
    assert kind == "progress" and fields["unit"] == "B"
    assert fields["done"] == fields["total"] == sum(path.stat().st_size for path in folder.iterdir())
    emitted.events.clear()
    fingerprint(folder, tmp_path / "memo.json", emit=emitted)
    assert emitted.events == []


def test_a_file_that_grows_meanwhile_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._hash_file

    def grow(path: Path, *args: Any) -> str:
        if path.name == "config.json":
            path.write_text(path.read_text() + " ")
        return real(path, *args)

    monkeypatch.setattr(module, "_hash_file", grow)
    with pytest.raises(CheckpointInvalid, match=r"config\.json changed while it was read") as caught:
        fingerprint(folder, tmp_path / "memo.json")
    assert "download still running" in caught.value.cause


def test_unreadable_and_missing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        fingerprint(tmp_path / "nothing", tmp_path / "memo.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointInvalid, match="no files of a model"):
        fingerprint(tmp_path / "empty", tmp_path / "memo.json")

    real = Path.open

    def failing(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name.startswith("model-00002"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(CheckpointInvalid, match=r"model-00002-of-00003\.safetensors cannot be read") as caught:
        fingerprint(folder, tmp_path / "memo.json")
    assert "Input/output error" in caught.value.cause
