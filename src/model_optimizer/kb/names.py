"""Names as people type them: what counts as the same, and what was probably meant.

``rtx4090`` and ``NVIDIA GeForce RTX 4090`` are one board; ``4060``, ``4060 Ti``, ``4060 Laptop`` are three.
So names are compared as sets of words, never as substrings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache

from model_optimizer.errors import UnknownName

# Words that every board of a maker carries: they tell nothing apart.
# fmt: off
_BRANDS = frozenset({
    "nvidia", "geforce", "rtx", "gtx", "tesla", "quadro", "amd", "radeon", "rx", "instinct", "intel", "arc", "gpu",
    "graphics", "card", "generation", "edition", "blackwell", "desktop", "hgx", "oam", "corporation",
})

# Words that only say which build of one board it is: a name without them is unfinished, not wrong.
VARIANT_WORDS = frozenset({
    "sxm", "pcie", "nvl", "server", "workstation", "maxq", "agx", "nx", "nano", "jetson", "dgx", "ac", "hbm3", "hbm3e",
})
# fmt: on

_PCI = re.compile(r"^(?:0x)?(?P<a>[0-9a-f]{4})(?P<colon>:?)(?P<b>[0-9a-f]{4})$")
_VENDOR_IDS = ("10de", "1002", "8086")

_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"max-?q\s*/\s*mobile", "laptop"),  # lspci's way of saying laptop
        (r"\b(mobile|notebook)\b", "laptop"),
        (r"\bmax[- ]?q\b", "maxq"),
        (r"\bpci-?e(xpress)?\b", "pcie"),
        (r"\b(\d+)\s*(gb|gib|g)\b", r" \1gb "),  # 80 GB, 80g
        (r"\b(rtx|gtx|rx|arc)(?=\d)", r"\1 "),  # rtx4090
        (r"\b(\d{4})(ti|super|xtx|xt|laptop|mobile|d)\b", r"\1 \2"),  # 4060ti
        (r"\b([abhglv]{1,2}\d{2,3}s?)(nvl|pcie|sxm\d?)\b", r"\1 \2"),  # h100nvl
        (r"\bsxm\d\b", "sxm"),
    )
)


@lru_cache(maxsize=4096)
def words(name: str) -> frozenset[str]:
    """The words of a GPU name that tell boards apart: ``NVIDIA A100-SXM4-80GB`` → ``{a100, sxm, 80gb}``."""
    text = name.lower()
    if "[" in text and "]" in text:  # lspci: NVIDIA Corporation AD107M [GeForce RTX 4060 Max-Q / Mobile] (rev a1)
        text = text[text.index("[") + 1 : text.rindex("]")]
    text = re.sub(r"\((r|tm)\)|[®™]", " ", text)
    text = re.sub(r"[_,()]", " ", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return frozenset(part for part in re.split(r"[\s\-/]+", text) if part and part not in _BRANDS)


def pci_id(text: str) -> str | None:
    """``10de:28a0`` from the ways it is printed: ``10DE:28A0``, ``0x28A010DE`` (nvidia-smi). ``None``: not a PCI id."""
    match = _PCI.match(text.strip().lower())
    if match is None:
        return None
    first, second = match["a"], match["b"]
    if match["colon"] or first in _VENDOR_IDS:
        return f"{first}:{second}"
    return f"{second}:{first}" if second in _VENDOR_IDS else None


def memory_word(word: str) -> int | None:
    """The gigabytes in a word such as ``80gb``; ``None`` for other words."""
    match = re.fullmatch(r"(\d+)gb", word)
    return int(match[1]) if match else None


def is_variant(word: str) -> bool:
    """True for words that name a build of a board: form factor or memory size."""
    return word in VARIANT_WORDS or memory_word(word) is not None


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Up to ``limit`` known names that look most like ``name``, best first; poor matches left out."""
    wanted = name.lower()
    scored = [(SequenceMatcher(None, wanted, candidate.lower()).ratio(), candidate) for candidate in known]
    best = sorted((pair for pair in scored if pair[0] >= 0.5), key=lambda pair: -pair[0])
    return [candidate for _, candidate in best[:limit]]


def unknown(
    kind: str, name: str, known: Sequence[str], *, near: Sequence[str] = (), listed_by: str = ""
) -> UnknownName:
    """The error for a name we do not know; the caller raises it. ``near``: what was probably meant, if known."""
    near = list(near) or nearest(name, known)
    shown = near or list(known)
    choices = ", ".join(shown[:12]) + (" …" if len(shown) > 12 else "")
    question = f"did you mean {choices}?" if near else f"choose one of: {choices}"
    return UnknownName(
        f"no {kind} named {name!r}",
        cause=f"the knowledge base has {len(known)} names of that kind and none matches",
        fix=f"{question} {listed_by}".strip(),
        evidence=near,
    )


def ambiguous(kind: str, name: str, choices: Sequence[str]) -> UnknownName:
    """The error for a name that fits several; the caller raises it."""
    return UnknownName(
        f"{name!r} is more than one {kind}",
        cause=f"it fits {', '.join(choices)}, which differ in what matters here",
        fix=f"write which one: {' or '.join(choices)}",
        evidence=choices,
    )
