"""Headers of safetensors files: every byte of them may be wrong."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from model_optimizer.host.safetensors import read_safetensors_header
from tests.host.checkpoints import FAMILIES, hf_folder, safetensors_header, write_safetensors


def write(path: Path, table: Any, data_bytes: int) -> Path:
    raw = json.dumps(table).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(data_bytes))
    return path


def entry(begin: int, end: int, dtype: str = "BF16", shape: tuple[Any, ...] = (2, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_healthy(tmp_path: Path) -> None:
    tensors = {
        "a": ("BF16", (2, 3)),
        "b": ("F8_E4M3", (5,)),
        "c": ("I64", ()),
        "d": ("F32", (0, 4)),
        "e": ("F4", (4, 2)),
    }
    header = read_safetensors_header(write_safetensors(tmp_path / "x.safetensors", tensors))
    assert header.problems == ()
    assert [(t.name, t.num_elements, t.num_bytes) for t in header.tensors] == [
        ("a", 6, 12), ("b", 5, 5), ("c", 1, 8), ("d", 0, 0), ("e", 8, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "data_bytes", "check", "words"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "weights.offsets", "'b' begins at byte 4, 8 expected: it overlaps"),
        ({"a": entry(0, 8), "b": entry(10, 18)}, 18, "weights.offsets", "'b' begins at byte 10, 8 expected: it leaves"),
        ({"a": entry(2, 10)}, 10, "weights.offsets", "'a' begins at byte 2, 0 expected"),
        ({"a": entry(0, 8)}, 7, "weights.size", "1 bytes are missing"),
        ({"a": entry(0, 8)}, 9, "weights.size", "1 bytes after its last tensor"),
        ({"a": entry(0, 8, dtype="F7")}, 8, "weights.dtype", "unknown tensor type F7"),
        ({"a": entry(0, 9)}, 9, "weights.header", "entry of tensor 'a' is malformed"),
        ({"a": entry(8, 0)}, 8, "weights.header", "malformed"),
        ({"a": entry(0, 8, shape=(-2, -2))}, 8, "weights.header", "malformed"),
        ({"a": entry(0, 8, shape=(2.0, 2))}, 8, "weights.header", "malformed"),
        ({"a": entry(0, 8, shape=(1,) * 1000)}, 8, "weights.header", "malformed"),
        ({"a": {"dtype": ["BF16"], "shape": [2, 2], "data_offsets": [0, 8]}}, 8, "weights.header", "malformed"),
        ({"a": 3}, 0, "weights.header", "malformed"),
        ([1, 2], 0, "weights.header", "does not begin with"),
    ],
)
def test_broken_tables(tmp_path: Path, table: Any, data_bytes: int, check: str, words: str) -> None:
    header = read_safetensors_header(write(tmp_path / "x.safetensors", table, data_bytes))
    assert [(p.id, p.severity) for p in header.problems] == [(check, "error")]
    assert words in header.problems[0].message and header.problems[0].fix


@pytest.mark.parametrize("magic", [b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK\x03\x04"])
def test_header_lengths_that_look_like_other_formats(tmp_path: Path, magic: bytes) -> None:
    """A length is 8 free bytes: 1152 is 80 04 00 …, as a pickle begins."""
    raw, data_bytes = safetensors_header({"a": ("BF16", (2, 2))})
    length = int.from_bytes(magic.ljust(8, b"\0"), "little")
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + raw.ljust(length) + bytes(data_bytes))
    assert read_safetensors_header(path).problems == ()


def test_no_allocation_by_a_length_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((90_000_000).to_bytes(8, "little") + b"{" + bytes(50))
    assert "cut short" in read_safetensors_header(path).problems[0].message


def test_other_kinds_of_files(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"GGUF\x03\0\0\0" + bytes(100))
    assert "GGUF file named .safetensors" in read_safetensors_header(path).problems[0].message
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in read_safetensors_header(path).problems[0].message
    path.unlink()
    assert read_safetensors_header(path).problems[0].id == "files.missing"


TENSORS = FAMILIES["llama"].tensors
HEADER, DATA = safetensors_header(TENSORS)
WHOLE = len(HEADER).to_bytes(8, "little") + HEADER + bytes(DATA)


def _check(data: bytes, *, must_fail: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = hf_folder(Path(name) / "m")
        (folder / "model.safetensors").write_bytes(data)
        try:
            require_healthy(read_checkpoint(folder))
        except CheckpointInvalid as error:
            assert error.cause and error.fix
        else:
            assert not must_fail


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(WHOLE) - 1))
def test_cut_anywhere_is_refused(length: int) -> None:
    _check(WHOLE[:length], must_fail=True)


@settings(max_examples=250, deadline=None)
@given(st.dictionaries(st.integers(0, 8 + len(HEADER) - 1), st.integers(0, 255), min_size=1, max_size=8))
def test_corrupt_header_is_a_clear_error_or_harmless(changes: dict[int, int]) -> None:
    data = bytearray(WHOLE)
    for at, value in changes.items():
        data[at] = value
    _check(bytes(data), must_fail=False)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    _check(data, must_fail=True)
