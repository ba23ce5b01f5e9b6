"""What is known of the host beside the log, and the numbers that a fix is filled with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

_PLACE = re.compile(r"\{\{([a-z0-9_]+)(?:\|([^{}]*))?\}\}")

GIB = {"gib": 1.0, "gb": 1.0, "mib": 1 / 1024, "mb": 1 / 1024}


def fact_lines(facts: Mapping[str, object], engine: str | None) -> tuple[str, ...]:
    """Facts as lines ``key: value``, nested as ``key.key: value``: the patterns of a cause read them like a log."""
    lines = [f"engine: {engine}"] if engine else []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            lines += fact_lines({f"{key}.{inner}": v for inner, v in value.items()}, None)
        elif isinstance(value, list | tuple | set):
            lines.append(f"{key}: {', '.join(map(str, value))}")
        elif value is None:
            lines.append(str(key))
        else:
            lines.append(f"{key}: {value}")
    return tuple(lines)


def fill(text: str, numbers: Mapping[str, str]) -> str:
    """Put the numbers of this log into a step: ``{{fits|a length that fits}}``; text after ``|`` is for an unknown."""

    def value(place: re.Match[str]) -> str:
        return numbers.get(place[1], f"<{place[1]}>" if place[2] is None else place[2])

    return _PLACE.sub(value, text)


def derive(numbers: Mapping[str, str]) -> dict[str, str]:
    """The numbers of a log and what follows from them by arithmetic; what the log states itself is kept."""
    return {**{name: value for rule in _RULES for name, value in rule(numbers)}, **numbers}


def _float(numbers: Mapping[str, str], name: str) -> float | None:
    try:
        return float(numbers[name].replace(",", ""))
    except (KeyError, ValueError):
        return None


def _length_that_fits(numbers: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """KV memory is linear in length: max_model_len · available / needed, or the tokens the cache holds; whole 16s."""
    length, needed, available = (_float(numbers, n) for n in ("max_model_len", "needed_gib", "available_gib"))
    tokens = _float(numbers, "kv_tokens")
    if tokens is None and length and needed and available is not None:
        tokens = length * available / needed
    if tokens:
        yield "fits", str(int(tokens) // 16 * 16)


def _utilization_that_fits(numbers: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """The share of the GPU that is free, rounded down to a hundredth, one hundredth left as a reserve."""
    free, total = (_float(numbers, n) for n in ("free_gib", "total_gib"))
    if free and total:
        yield "utilization", f"{max(0, int(100 * free / total) - 1) / 100:.2f}"


def _divisors(numbers: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Tensor-parallel sizes that split the heads, up to 16."""
    heads = _float(numbers, "heads")
    if heads:
        yield "divisors", ", ".join(str(n) for n in range(1, 17) if int(heads) % n == 0)


def _workspace(numbers: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """A TensorRT workspace in MiB, a quarter above the request, in whole 256s."""
    requested = _float(numbers, "workspace_bytes")
    if requested:
        yield "workspace_mib", str((int(requested * 1.25 / 2**20) // 256 + 1) * 256)


_RULES: tuple[Callable[[Mapping[str, str]], Iterable[tuple[str, str]]], ...] = (
    _length_that_fits,
    _utilization_that_fits,
    _divisors,
    _workspace,
)
