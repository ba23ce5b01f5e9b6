"""Which GPU somebody means: by what drivers print, by what people type, by PCI id."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import cache

from model_optimizer.kb.gpus import gpus
from model_optimizer.kb.names import ambiguous, is_variant, memory_word, pci_id, unknown, words
from model_optimizer.records.hardware import GpuSpec


@cache
def _spellings() -> tuple[tuple[frozenset[str], GpuSpec], ...]:
    """Every known spelling of every GPU as words."""
    return tuple(
        (words(spelling), spec)
        for spec in gpus()
        for spelling in dict.fromkeys((spec.id, spec.title, *spec.names, *spec.aliases))
    )


@cache
def _exact() -> dict[str, GpuSpec]:
    """Names that a machine wrote: ids, driver names, PCI ids. They cannot be ambiguous."""
    found: dict[str, GpuSpec] = {}
    for spec in gpus():
        for name in (spec.id, *spec.names, *spec.pci_ids):
            found.setdefault(name.lower(), spec)
    return found


def _spelled(asked: frozenset[str]) -> list[GpuSpec]:
    """GPUs spelled with exactly these words; failing that, those whose names these words leave unfinished."""
    ids = {spec.id for known, spec in _spellings() if known == asked}
    if not ids:
        ids = {spec.id for known, spec in _spellings() if asked < known and all(map(is_variant, known - asked))}
    return [spec for spec in gpus() if spec.id in ids]


def matching_gpus(name: str) -> tuple[GpuSpec, ...]:
    """All GPUs the name can mean: one that is spelled so, else all whose name it leaves unfinished (``h100``: three).

    Words that are not in a GPU's name rule it out, so ``4090 D`` is not the 4090.
    """
    wanted = name.strip().lower()
    direct = _exact().get(wanted) or _exact().get(pci_id(wanted) or "")
    if direct is not None:
        return (direct,)
    if wanted.startswith("gfx"):
        return tuple(spec for spec in gpus() if spec.gfx is not None and spec.gfx.value == wanted)
    asked = words(name)
    if not asked:
        return ()
    found = _spelled(asked)
    sizes = {size * 2**30 for size in map(memory_word, asked) if size is not None}
    if not found and sizes:  # "4090 24gb": the size is true, only not part of the name
        rest = frozenset(word for word in asked if memory_word(word) is None)
        found = [spec for spec in _spelled(rest) if sizes <= {spec.memory_bytes.value, *spec.memory_variants_bytes}]
    return tuple(found)


def _likely(name: str) -> list[str]:
    """Ids of the GPUs whose spellings look most like the name."""
    asked = " ".join(sorted(words(name)))
    scores: dict[str, float] = {}
    for known, spec in _spellings():
        ratio = SequenceMatcher(None, asked, " ".join(sorted(known))).ratio()
        shared = len(known & words(name)) * 0.15
        scores[spec.id] = max(scores.get(spec.id, 0.0), ratio + shared)
    best = sorted(scores, key=lambda gpu_id: -scores[gpu_id])
    return [gpu_id for gpu_id in best[:4] if scores[gpu_id] >= 0.55]


def gpu(name: str) -> GpuSpec:
    """The GPU of that name.

    Takes what drivers print (``NVIDIA GeForce RTX 4060 Laptop GPU``), what people type (``4060 laptop``, ``rtx4090``,
    ``h100 pcie``) and PCI ids (``10de:28a0``, ``0x28A010DE``). Raises ``UnknownName`` with the choices where several
    boards share the name, and with the nearest names where none has it.
    """
    found = matching_gpus(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise ambiguous("GPU", name, [spec.id for spec in found])
    raise unknown("GPU", name, [spec.id for spec in gpus()], near=_likely(name), listed_by="(all: model-optimize gpus)")
