"""Headers of GGUF files: every byte of them may be wrong."""

from __future__ import annotations

import struct
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.checkpoint import read_checkpoint, require_healthy
from model_optimizer.host.gguf import ArrayOf, read_gguf_header
from tests.host.checkpoints import gguf_file, gguf_header, gguf_metadata, gguf_tensors, write_gguf


@pytest.mark.parametrize("version", [2, 3])
def test_healthy(tmp_path: Path, version: int) -> None:
    metadata = gguf_metadata(test__float=1.5, test__flag=True, test__numbers=[1, 2, 3], test__many=list(range(5000)))
    header = read_gguf_header(write_gguf(tmp_path / "x.gguf", metadata, gguf_tensors(), version=version))
    assert header.version == version and header.problems == ()
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayOf(32, None)
    assert (header.metadata["test.float"], header.metadata["test.flag"]) == (1.5, True)
    assert header.metadata["test.numbers"] == ArrayOf(3, (1, 2, 3))
    assert header.metadata["test.many"] == ArrayOf(5000, None)  # counted, not kept
    embedding = header.tensors[0]
    assert (embedding.name, embedding.shape, embedding.dtype) == ("token_embd.weight", (32, 64), "Q8_0")
    assert embedding.num_bytes == 32 * 64 // 32 * 34


def test_a_large_vocabulary_crosses_the_reading_buffer(tmp_path: Path) -> None:
    tokens = [f"token number {i} with some length to it" for i in range(60_000)]
    metadata = gguf_metadata(tokenizer__ggml__tokens=tokens, test__last="end")
    header = read_gguf_header(write_gguf(tmp_path / "x.gguf", metadata, gguf_tensors()))
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayOf(60_000, None)
    assert header.metadata["test.last"] == "end" and len(header.tensors) == 21


def refused(path: Path) -> CheckpointInvalid:
    with pytest.raises(CheckpointInvalid) as caught:
        read_checkpoint(path)
    assert caught.value.fix and path.name in caught.value.what
    return caught.value


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"GGML" + bytes(range(64)), "bad magic: the file begins with 47 47 4d 4c"),
        (b"tjgg" + bytes(range(64)), "from before GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98000000\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>" + bytes(99), "web page"),
        (b"GGUF\x03\0\0\0", "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(64), "version 1 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0) + bytes(64), "version 9 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(64), "tensors, which cannot be"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(64), "metadata entries, which cannot be"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**50) + bytes(64), "bytes in a metadata key, which cannot be"),
    ],
)
def test_bad_starts(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    assert words in refused(path).cause


def _one(kind: int, payload: bytes) -> bytes:
    """A file with one metadata entry of this type."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + payload


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (99, bytes(64), "unknown type 99"),
        (8, struct.pack("<Q", 2**40), "bytes in k, which cannot be"),
        (8, struct.pack("<Q", 10**6), "ends inside its header"),
        (9, struct.pack("<IQ", 8, 2**60), "elements in k, which cannot be"),
        (9, struct.pack("<IQ", 8, 10**6) + bytes(64), "ends inside its header"),
        (9, struct.pack("<IQ", 4, 10**6) + bytes(64), "begins at byte"),
        (9, struct.pack("<IQ", 9, 1) + bytes(64), "array of the unknown type 9"),
        (9, struct.pack("<IQQ", 8, 1, 2**63) + bytes(64), "a value of"),
    ],
)
def test_bad_metadata(tmp_path: Path, kind: int, payload: bytes, words: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(_one(kind, payload))
    tracemalloc.start()
    try:
        error = refused(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in error.cause
    assert peak < 5_000_000, "a length in the file was believed"


def _tensor_info(dims: tuple[int, ...], kind: int = 0, offset: int = 0, num_dims: int | None = None) -> bytes:
    info = (
        struct.pack("<Q", 1) + b"t" + struct.pack(f"<I{len(dims)}Q", len(dims) if num_dims is None else num_dims, *dims)
    )
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info + struct.pack("<IQ", kind, offset) + bytes(64)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_tensor_info((4,), kind=77), "unknown type 77"),
        (_tensor_info((2**40, 2**40)), "has the shape"),
        (_tensor_info((4, 0)), "has the shape"),
        (_tensor_info((31,), kind=8), "Q8_0 (blocks of 32) does not allow"),
        (_tensor_info((1, 1, 1, 1), num_dims=5), "5 dimensions of tensor 't', which cannot be"),
    ],
)
def test_bad_tensor_infos(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    assert words in refused(path).cause


def test_key_twice_and_alignment(tmp_path: Path) -> None:
    entry = struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 1)
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry * 2)
    assert "'k' occurs twice" in refused(path).cause
    gguf_file(path, general__alignment=24)
    assert "not a power of two" in refused(path).cause


HEADER, DATA = gguf_header(gguf_metadata(), gguf_tensors())
WHOLE = HEADER + bytes(DATA)


def test_damage_that_leaves_the_header_readable(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(WHOLE[:-3])
    header = read_gguf_header(path)
    assert header.problems[0].id == "gguf.size" and "3 bytes are missing" in header.problems[0].message
    second = HEADER.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8 + 4
    for offset, words in ((0, "overlaps"), (4096, "leaves a hole")):
        path.write_bytes(WHOLE[:second] + struct.pack("<Q", offset) + WHOLE[second + 8 :])
        problem = read_gguf_header(path).problems[0]
        assert problem.id == "gguf.offsets" and words in problem.message


def _check(data: bytes, *, must_fail: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.gguf"
        path.write_bytes(data)
        try:
            require_healthy(read_checkpoint(path))
        except CheckpointInvalid as error:
            assert error.cause and error.fix
        else:
            assert not must_fail


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 1))
def test_cut_anywhere_is_refused(length: int) -> None:
    _check(WHOLE[:length], must_fail=True)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.integers(0, len(HEADER) - 1), st.integers(0, 255), min_size=1, max_size=8))
def test_corrupt_header_is_a_clear_error_or_harmless(changes: dict[int, int]) -> None:
    data = bytearray(WHOLE)
    for at, value in changes.items():
        data[at] = value
    _check(bytes(data), must_fail=False)
