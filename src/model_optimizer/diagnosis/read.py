"""A log of any size, origin and encoding as blocks of bytes whose lines are numbered."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, NamedTuple, Protocol, runtime_checkable

BLOCK_BYTES = 1 << 20
_SNIFF_BYTES = 1 << 16
# Colours and cursor moves, as a terminal writes them, as journald (#033) and as editors (^[) show them. One pattern
# each, because a literal beginning makes the search many times faster.
_ESCAPES = (b"\x1b", b"#033", b"^[")
_ANSI = tuple(
    re.compile(re.escape(escape) + rb"(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))")
    for escape in _ESCAPES
)
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b"))

Source = str | bytes | IO[bytes] | IO[str] | Iterable[str] | Iterable[bytes]


@runtime_checkable
class _Readable(Protocol):
    def read(self, size: int, /) -> str | bytes: ...


class Block(NamedTuple):
    """Consecutive lines: the number of the first one (from 1) and their bytes, separated by newlines.

    A line longer than a block comes in several blocks with the same number.
    """

    first: int
    data: bytes


def blocks(source: Source) -> Iterator[Block]:
    """Split a log into blocks of about 1 MiB, without colour codes, in UTF-8 wherever it was UTF-16.

    Takes a whole text, an open file (read in pieces: memory stays bounded), or the lines of one.
    """
    number, rest = 1, b""
    for piece in _as_utf8(_pieces(source)):
        data = rest + piece
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            whole += newline
        elif len(rest) > BLOCK_BYTES:
            whole, rest = rest, b""
        if whole:
            yield Block(number, _without_ansi(whole))
            number += whole.count(b"\n")
    if rest:
        yield Block(number, _without_ansi(rest))


def _without_ansi(data: bytes) -> bytes:
    for escape, pattern in zip(_ESCAPES, _ANSI, strict=True):
        if escape in data:
            data = pattern.sub(b"", data)
    return data


def is_binary(head: bytes) -> bool:
    """True where the beginning of a file (UTF-16 already decoded) is not text: NUL and control bytes abound."""
    sample = head[:_SNIFF_BYTES]
    return len(sample) - len(sample.translate(None, _CONTROL)) > 0.05 * len(sample)


def decode(line: bytes) -> str:
    """A line as text: UTF-8, else GB 18030 (Chinese Windows), else whatever can be read of it."""
    for encoding in ("utf-8", "gb18030"):
        try:
            return line.decode(encoding)
        except UnicodeDecodeError:
            continue
    return line.decode("utf-8", "replace")


def _pieces(source: Source) -> Iterator[bytes]:
    if isinstance(source, str | bytes):
        data = _bytes(source)
        yield from (data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))
    elif isinstance(source, _Readable):
        yield from _gathered(_reads(source))
    else:
        yield from _gathered(_ended(line) for line in source)


def _reads(source: _Readable) -> Iterator[bytes]:
    while piece := source.read(BLOCK_BYTES):
        yield _bytes(piece)


def _gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Small parts, as pipes and line iterators give them, in pieces of about a block."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _ended(line: str | bytes) -> bytes:
    data = _bytes(line)
    return data if data.endswith(b"\n") else data + b"\n"


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    head = next(pieces, b"")
    encoding = _utf16(head[:_SNIFF_BYTES])
    if encoding is None:
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for piece in chain((head,), pieces):
        yield decoder.decode(piece).encode("utf-8", "surrogatepass")


def _utf16(head: bytes) -> str | None:
    """PowerShell writes redirected output as UTF-16: by its mark, or by a NUL in every second byte."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding, offset in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = head[offset::2].count(0), head[1 - offset :: 2].count(0)
        if zeros > 0.7 * max(1, len(head) // 2) and not others:
            return encoding
    return None
