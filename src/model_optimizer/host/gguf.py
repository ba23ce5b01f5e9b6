"""Header of a GGUF file: metadata and tensor descriptions. No tensor is read, no length in the file is trusted.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, counts, key-value pairs, tensor
infos, padding, data. Long arrays (a vocabulary) are skipped and only counted.
"""

from __future__ import annotations

import os
import struct
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.health import FETCH_AGAIN, error, foreign_file, not_regular, unreadable
from model_optimizer.host.safetensors import TensorInfo
from model_optimizer.records.model import HealthCheck
from model_optimizer.units import format_bytes

_CHUNK = 1 << 20
_MAX_KEY = 65_535
_MAX_TEXT = 16 << 20
_MAX_PAIRS = 100_000
_MAX_TENSORS = 1_000_000
_MAX_ARRAY = 1 << 24
_KEPT_ARRAY = 4096
_MAX_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}

# ggml type: name, weights a block, bytes a block (ggml/include/ggml.h, ggml/src/ggml-common.h).
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip


class ArrayOf(NamedTuple):
    """An array in the metadata: how long it is, and its values where it is short and numeric."""

    length: int
    values: tuple[int | float | bool, ...] | None


Value = int | float | bool | str | ArrayOf


class GgufHeader(NamedTuple):
    """What the header says; ``problems`` are damages that leave the header readable."""

    version: int
    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    problems: tuple[HealthCheck, ...]


class _Broken(Exception):
    """Found while reading; becomes CheckpointInvalid at the one way out."""


class _Cursor:
    """Reads forward through a file, never past its end."""

    def __init__(self, file: BufferedReader, size: int) -> None:
        self._file = file
        self._size = size
        self._start = 0  # of the buffer, in the file
        self._buffer = b""
        self._at = 0  # in the buffer

    @property
    def position(self) -> int:
        return self._start + self._at

    @property
    def left(self) -> int:
        return self._size - self.position

    def _need(self, count: int) -> None:
        if self._at + count <= len(self._buffer):
            return
        if count > self.left:
            raise _Broken(
                f"the file ends inside its header, at byte {self._size}: it is cut short, or a length in it is wrong"
            )
        position = self.position
        self._file.seek(position)
        self._buffer = self._file.read(min(max(count, _CHUNK), self.left))
        self._start, self._at = position, 0
        if len(self._buffer) < count:
            raise _Broken("the file became shorter while it was read")

    def take(self, count: int) -> bytes:
        self._need(count)
        data = self._buffer[self._at : self._at + count]
        self._at += count
        return data

    def skip(self, count: int) -> None:
        if count > self.left:
            raise _Broken(
                f"a value of {count} bytes begins at byte {self.position} of {self._size}: cut short or damaged"
            )
        self._at += count
        if self._at > len(self._buffer):
            self._start, self._at, self._buffer = self.position, 0, b""

    def number(self, layout: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def count(self, layout: str, limit: int, what: str) -> int:
        value = int(self.number(layout))
        if value > limit:
            raise _Broken(f"it says {value} {what}, which cannot be: damaged")
        return value

    def text(self, limit: int, what: str) -> str:
        length = self.count("<Q", limit, f"bytes in {what}")
        return self.take(length).decode("utf-8", "replace")

    def skip_texts(self, count: int) -> None:
        """Step over ``count`` strings, on the raw buffer: the loop runs for every token of the vocabulary."""
        length_at = struct.Struct("<Q").unpack_from
        while count:
            self._need(8)
            buffer, at, last = self._buffer, self._at, len(self._buffer) - 8
            start = at
            while count and at <= last:
                at += 8 + length_at(buffer, at)[0]
                count -= 1
            self.skip(at - start)


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of one GGUF file.

    Raises CheckpointInvalid where it is no GGUF file, of a version we do not know, or the header itself is damaged or
    cut short. Missing tensor data is returned in ``problems``: the header is whole then.
    """
    try:
        bad_kind = not_regular(path, path.stat().st_mode)
        if bad_kind:
            raise _invalid(path, bad_kind)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(min(size, 512))
            problem = _bad_start(path.name, head, size)
            if problem:
                raise _invalid(path, problem)
            cursor = _Cursor(file, size)
            cursor.skip(4)
            return _read(path.name, cursor, size)
    except _Broken as caught:
        raise CheckpointInvalid(
            f"{path.name} is not a usable GGUF file", cause=str(caught), fix=FETCH_AGAIN, evidence=(str(path),)
        ) from None
    except OSError as caught:
        raise _invalid(path, unreadable(path, caught)) from None


def _invalid(path: Path, problem: HealthCheck) -> CheckpointInvalid:
    return CheckpointInvalid(
        f"{path.name} is not a usable GGUF file",
        cause=problem.message,
        fix=problem.fix or FETCH_AGAIN,
        evidence=(str(path),),
    )


def _bad_start(name: str, head: bytes, size: int) -> HealthCheck | None:
    foreign = foreign_file(name, head, size)
    if foreign:
        return foreign
    if head[:4] != b"GGUF":
        seen = head[:4].hex(" ") or "nothing"
        return error(
            "gguf.magic", f"bad magic: the file begins with {seen}, a GGUF file with 47 47 55 46 ('GGUF')", FETCH_AGAIN
        )
    if size < 24:
        return error("gguf.header", f"the file has {size} bytes: cut short in its first 24", FETCH_AGAIN)
    version = int.from_bytes(head[4:8], "little")
    if version & 0xFFFF == 0:
        return error(
            "gguf.version",
            "the file is big-endian; the engines here read little-endian GGUF",
            "Convert it with gguf-convert-endian.",
        )
    if version not in (2, 3):
        return error(
            "gguf.version",
            f"GGUF version {version} is not supported (2 and 3 are)",
            "Convert the original checkpoint anew."
            if version == 1
            else "Update Model-Optimizer, or download the file again.",
        )
    return None


def _read(name: str, cursor: _Cursor, size: int) -> GgufHeader:
    version = int(cursor.number("<I"))
    num_tensors = cursor.count("<Q", min(_MAX_TENSORS, size // 24), "tensors")
    num_pairs = cursor.count("<Q", min(_MAX_PAIRS, size // 13), "metadata entries")
    metadata: dict[str, Value] = {}
    for _ in range(num_pairs):
        key = cursor.text(_MAX_KEY, "a metadata key")
        if key in metadata:
            raise _Broken(f"the metadata key {key!r} occurs twice")
        metadata[key] = _value(cursor, int(cursor.number("<I")), key)
    placed = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise _Broken(f"general.alignment is {alignment!r}, not a power of two")
    data_start = -(-cursor.position // alignment) * alignment
    problems = _check_places(name, placed, alignment, size - data_start)
    return GgufHeader(version, metadata, tuple(tensor for tensor, _ in placed), tuple(problems))


def _value(cursor: _Cursor, kind: int, key: str) -> Value:
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        return cursor.text(_MAX_TEXT, key)
    if kind != _ARRAY:
        raise _Broken(f"{key} has the unknown type {kind}")
    element = int(cursor.number("<I"))
    count = cursor.count("<Q", _MAX_ARRAY, f"elements in {key}")
    if element == _STRING:
        cursor.skip_texts(count)
        return ArrayOf(count, None)
    if element not in _SCALARS:
        raise _Broken(f"{key} is an array of the unknown type {element}")
    layout = _SCALARS[element]
    width = struct.calcsize(layout)
    if count > _KEPT_ARRAY:
        cursor.skip(count * width)
        return ArrayOf(count, None)
    return ArrayOf(count, struct.unpack(f"<{count}{layout[1]}", cursor.take(count * width)))


def _tensor(cursor: _Cursor) -> tuple[TensorInfo, int]:
    """One tensor and the place of its data."""
    name = cursor.text(_MAX_KEY, "a tensor name")
    num_dimensions = cursor.count("<I", _MAX_DIMENSIONS, f"dimensions of tensor {name!r}")
    shape = tuple(int(cursor.number("<Q")) for _ in range(num_dimensions))
    kind = int(cursor.number("<I"))
    offset = int(cursor.number("<Q"))
    if kind not in GGML_TYPES:
        raise _Broken(f"tensor {name!r} has the unknown type {kind}: damaged, or newer than this version")
    dtype, block, block_bytes = GGML_TYPES[kind]
    elements = 1
    for extent in shape:
        elements *= extent
    if elements <= 0 or elements >= 1 << 63 or (shape and shape[0] % block):
        raise _Broken(f"tensor {name!r} has the shape {list(shape)}, which {dtype} (blocks of {block}) does not allow")
    # GGUF writes the fastest dimension first; we turn it into the usual order (rows, columns).
    return TensorInfo(name, dtype, shape[::-1], elements, elements // block * block_bytes), offset


def _check_places(
    name: str, placed: list[tuple[TensorInfo, int]], alignment: int, data_bytes: int
) -> list[HealthCheck]:
    """Tensors must follow each other, each at the next multiple of the alignment, and end within the file."""
    problems: list[HealthCheck] = []
    seen: set[str] = set()
    for tensor, _ in placed:
        if tensor.name in seen:
            problems.append(error("gguf.tensors", f"{name} holds the tensor {tensor.name!r} twice", FETCH_AGAIN))
            break
        seen.add(tensor.name)
    at = 0
    for tensor, offset in sorted(placed, key=lambda one: one[1]):
        if offset != at:
            kind = "overlaps the tensor before it" if offset < at else "leaves a hole before it"
            problems.append(
                error(
                    "gguf.offsets",
                    f"{name}: tensor {tensor.name!r} begins at byte {offset} of the data, {at} expected: it {kind}",
                    FETCH_AGAIN,
                )
            )
            break
        at = -(-(offset + tensor.num_bytes) // alignment) * alignment
    end = max((offset + tensor.num_bytes for tensor, offset in placed), default=0)
    if end > data_bytes:
        problems.append(
            error(
                "gguf.size",
                f"{name} is cut short: its tensors need {format_bytes(end)}, the file holds "
                f"{format_bytes(max(data_bytes, 0))} of tensor data ({end - data_bytes} bytes are missing)",
                FETCH_AGAIN,
            )
        )
    return problems
