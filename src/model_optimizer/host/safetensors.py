"""Headers of safetensors files: names, types, shapes and places of the tensors. No tensor is read.

A file is 8 bytes (little-endian length n), n bytes of JSON, then the data
(https://huggingface.co/docs/safetensors, "Format"). No length is believed that the file does not have.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import orjson

from model_optimizer.host.health import FETCH_AGAIN, error, foreign_file, not_regular, unreadable
from model_optimizer.records.model import HealthCheck
from model_optimizer.units import format_bytes

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_MAX_DIMENSIONS = 64

# Bits of one element.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class TensorInfo(NamedTuple):
    """One tensor as a header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_elements: int
    num_bytes: int


class Header(NamedTuple):
    """What a file's header says, and what is wrong with it. ``tensors`` is empty where it could not be read."""

    tensors: tuple[TensorInfo, ...]
    problems: tuple[HealthCheck, ...]


def read_safetensors_header(path: Path) -> Header:
    """Read one file's header and check it against the file's size. Damage is returned, never raised."""
    try:
        bad_kind = not_regular(path, path.stat().st_mode)
        if bad_kind:
            return Header((), (bad_kind,))
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(min(size, 512))
            problem = _bad_start(path.name, head, size)
            if problem:
                return Header((), (problem,))
            length = int.from_bytes(head[:8], "little")
            file.seek(8)
            raw = file.read(length)
    except OSError as caught:
        return Header((), (unreadable(path, caught),))
    return _parse(path.name, raw, size - 8 - length)


def _bad_start(name: str, head: bytes, size: int) -> HealthCheck | None:
    """Everything that the first bytes give away."""
    length = int.from_bytes(head[:8], "little")
    # A length may by chance begin like another format's magic; a brace behind a possible length settles it.
    foreign = None if head[8:9] == b"{" and length <= MAX_HEADER_BYTES else foreign_file(name, head, size)
    if foreign:
        return foreign
    if head[:4] == b"GGUF":
        return error(
            "weights.header", f"{name} is a GGUF file named .safetensors", "Rename it to .gguf and give its path."
        )
    if size < 8:
        return error("weights.header", f"{name} has {size} bytes: too short for a safetensors header", FETCH_AGAIN)
    if length > MAX_HEADER_BYTES:
        return error(
            "weights.header",
            f"{name}: its first 8 bytes say that the header has {length} bytes, more than any safetensors header may "
            f"have ({MAX_HEADER_BYTES}): the file is damaged or of another kind",
            FETCH_AGAIN,
        )
    if length > size - 8:
        return error(
            "weights.header",
            f"{name} is cut short: its header has {length} bytes, the file only {size - 8} after the length",
            FETCH_AGAIN,
        )
    if length < 2 or head[8:9] != b"{":
        return error(
            "weights.header", f"{name}: the header (length {length}) does not begin with '{{': wrong header length, or "
            "the file is damaged", FETCH_AGAIN,
        )  # fmt: skip
    return None


def _parse(name: str, raw: bytes, data_bytes: int) -> Header:
    try:
        table = orjson.loads(raw)
    except orjson.JSONDecodeError as caught:
        problem = f"{name}: the header is not valid JSON (wrong header length, or damaged): {caught}"
        return Header((), (error("weights.header", problem, FETCH_AGAIN),))
    if not isinstance(table, dict):
        return Header((), (error("weights.header", f"{name}: the header is not a table of tensors", FETCH_AGAIN),))
    table.pop("__metadata__", None)
    tensors: list[TensorInfo] = []
    spans: list[tuple[int, int, str]] = []
    sizes: dict[tuple[str, tuple[int, ...]], tuple[int, int | None]] = {}
    for tensor_name, entry in table.items():
        # One pass per tensor, of which a large model has 90 000: what repeats (type and shape) is worked out once.
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            elements, size = sizes.get((dtype, shape)) or sizes.setdefault((dtype, shape), _size(dtype, shape))
            usable = type(begin) is int and type(end) is int and 0 <= begin <= end and size in (None, end - begin)
        except (KeyError, TypeError, ValueError):
            usable = False
        if not usable:
            problem = f"{name}: the entry of tensor {tensor_name!r} is malformed"
            return Header(tuple(tensors), (error("weights.header", problem, FETCH_AGAIN),))
        tensors.append(TensorInfo(tensor_name, dtype, shape, elements, end - begin))
        spans.append((begin, end, tensor_name))
    return Header(tuple(tensors), (*_check_dtypes(name, tensors), *_check_spans(name, spans, data_bytes)))


def _size(dtype: object, shape: tuple[object, ...]) -> tuple[int, int | None]:
    """Elements and bytes (``None``: unknown type). Raises ValueError for a shape that is none."""
    if not isinstance(dtype, str) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(dtype)
    elements = 1
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise ValueError(extent)
        elements *= extent
    bits = DTYPE_BITS.get(dtype)
    return elements, None if bits is None else (elements * bits + 7) // 8


def _check_dtypes(name: str, tensors: list[TensorInfo]) -> list[HealthCheck]:
    unknown = sorted({tensor.dtype for tensor in tensors} - DTYPE_BITS.keys())
    if not unknown:
        return []
    return [
        error(
            "weights.dtype",
            f"{name}: unknown tensor type {', '.join(unknown[:5])}",
            "The file is damaged, or newer than this version: update Model-Optimizer, or download the file again.",
        )
    ]


def _check_spans(name: str, spans: list[tuple[int, int, str]], data_bytes: int) -> list[HealthCheck]:
    """The data of all tensors must follow each other without hole or overlap and end with the file."""
    problems: list[HealthCheck] = []
    spans.sort()
    at = 0
    for begin, end, tensor in spans:
        if begin != at:
            kind = "overlaps the tensor before it" if begin < at else "leaves a hole before it"
            problems.append(
                error(
                    "weights.offsets",
                    f"{name}: tensor {tensor!r} begins at byte {begin}, {at} expected: it {kind}",
                    FETCH_AGAIN,
                )
            )
            break
        at = end
    end = max((span[1] for span in spans), default=0)
    if end > data_bytes:
        problems.append(
            error(
                "weights.size",
                f"{name} is cut short: the header describes {format_bytes(end)} of tensor data, the file holds "
                f"{format_bytes(max(data_bytes, 0))} ({end - data_bytes} bytes are missing)",
                FETCH_AGAIN,
            )
        )
    elif end < data_bytes:
        problems.append(
            error(
                "weights.size",
                f"{name} has {data_bytes - end} bytes after its last tensor: header and data do not belong together",
                FETCH_AGAIN,
            )
        )
    return problems
