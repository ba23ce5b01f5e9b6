"""The weight files of a Hugging Face folder: which belong to the model, and whether they are all there and whole."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import CheckpointInvalid
from model_optimizer.host.health import FETCH_AGAIN, error, fine, note, warning
from model_optimizer.host.json_files import read_json
from model_optimizer.host.safetensors import TensorInfo, read_safetensors_header
from model_optimizer.host.spec_checks import counted, listed
from model_optimizer.records.model import HealthCheck
from model_optimizer.units import format_bytes

INDEX = "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors$")
_MAX_REPORTED = 20


class FolderWeights(NamedTuple):
    """All tensors of the readable files, and what was found about the files."""

    tensors: list[TensorInfo]
    checks: list[HealthCheck]
    files: tuple[str, ...]


def weight_files(folder: Path) -> tuple[str, ...]:
    """Names of the safetensors files that make up the model: not Mistral's ``consolidated`` copies, not adapters."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    return tuple(name for name in names if not name.startswith(("consolidated", "adapter_")))


def read_folder_weights(folder: Path) -> FolderWeights:
    """Read every header once. Raises CheckpointInvalid where no file could be read at all."""
    index, checks = _read_index(folder)
    present = weight_files(folder)
    files = tuple(sorted(set(index.values()))) if index else _without_index(present, checks)
    by_file: dict[str, tuple[TensorInfo, ...]] = {}
    missing: list[str] = []
    damage: list[HealthCheck] = []
    for name in files:
        if not (folder / name).exists():
            missing.append(name)
            continue
        header = read_safetensors_header(folder / name)
        damage += header.problems
        if header.tensors:
            by_file[name] = header.tensors
    if missing:
        checks.append(_missing_shards(folder, missing, len(files)))
    checks += damage[:_MAX_REPORTED]
    if not by_file:
        _nothing_readable(folder, checks)
    checks += _compare(index, by_file) if index else _duplicates(by_file)
    if not any(check.severity == "error" for check in checks):
        size = sum(tensor.num_bytes for tensors in by_file.values() for tensor in tensors)
        count = f"all {len(files)} shards are" if len(files) > 1 else f"{files[0]} is"
        checks.append(
            fine(
                "weights.shards", f"{count} present and whole: {format_bytes(size)} of tensors, sizes match the headers"
            )
        )
    unused = [name for name in present if name not in files]
    if unused:
        checks.append(note("weights.unused_files", f"not part of the model, only taking space: {listed(unused, 3)}"))
    return FolderWeights([t for tensors in by_file.values() for t in tensors], checks, files)


def _read_index(folder: Path) -> tuple[dict[str, str], list[HealthCheck]]:
    path = folder / INDEX
    if not path.exists() and not path.is_symlink():
        return {}, []
    try:
        table = read_json(path)
    except CheckpointInvalid as broken:
        return {}, [error("weights.index", f"{INDEX}: {broken.cause}", broken.fix)]
    weight_map = table.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        return {}, [
            error("weights.index", f"{INDEX} lists no tensors (weight_map is missing or malformed)", FETCH_AGAIN)
        ]
    outside = sorted(name for name in set(weight_map.values()) if Path(name).name != name)
    if outside:
        return {}, [error("weights.index", f"{INDEX} names a file outside the folder: {outside[0]!r}", FETCH_AGAIN)]
    return weight_map, []


def _without_index(present: tuple[str, ...], checks: list[HealthCheck]) -> tuple[str, ...]:
    """No index: ``model.safetensors`` alone, or whatever numbered set lies there, completed by its own numbering."""
    if "model.safetensors" in present:
        return ("model.safetensors",)
    numbered = [match for name in present if (match := _SHARD_NAME.match(name))]
    if not numbered:
        return present
    if not any(check.id == "weights.index" for check in checks):
        checks.append(
            warning(
                "weights.index",
                f"the model is in several files, but {INDEX} is missing: transformers will not find them",
                f"Download {INDEX} from the model's source.",
            )
        )
    stem, count = numbered[0]["stem"], int(numbered[0]["count"])
    expected = {f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)}
    return tuple(sorted(expected | set(present)))


def _missing_shards(folder: Path, missing: list[str], total: int) -> HealthCheck:
    dangling = [name for name in missing if (folder / name).is_symlink()]
    if dangling:
        return error(
            "weights.shards",
            f"{len(dangling)} of {total} shards are links to files that do not exist: {listed(dangling, 3)}",
            "Download the model again; the cache that the links point into was cleaned or moved.",
        )
    return error(
        "weights.shards",
        f"{len(missing)} of {counted(total, 'shard')} missing: {listed(missing, 3)}",
        "Download the missing files from the model's source into this folder.",
    )


def _nothing_readable(folder: Path, checks: list[HealthCheck]) -> None:
    first = next((check for check in checks if check.severity == "error"), None)
    raise CheckpointInvalid(
        f"the weights in {folder.name or folder} cannot be read",
        cause=first.message if first else "no safetensors file holds a tensor",
        fix=(first.fix if first else None) or FETCH_AGAIN,
        evidence=tuple(check.message for check in checks if check.severity == "error"),
    )


def _compare(index: dict[str, str], by_file: dict[str, tuple[TensorInfo, ...]]) -> list[HealthCheck]:
    """Index against the headers of the files that could be read, both ways."""
    promised: dict[str, set[str]] = defaultdict(set)
    for tensor, file in index.items():
        promised[file].add(tensor)
    absent: list[str] = []
    unlisted: list[str] = []
    for file, tensors in by_file.items():
        held = {tensor.name for tensor in tensors}
        if held == promised[file]:
            continue
        absent += [f"{tensor} in {file}" for tensor in sorted(promised[file] - held)]
        unlisted += [f"{tensor} in {file}" for tensor in sorted(held - promised[file])]
    checks = []
    if absent:
        message = (
            f"{len(absent)} tensor{'s' if len(absent) > 1 else ''} listed in the index but absent: {listed(absent, 3)}"
        )
        checks.append(error("weights.index", message, f"Download {INDEX} and all shards again, from one revision."))
    if unlisted:
        message = f"{counted(len(unlisted), 'tensor')} present but not listed in the index: {listed(unlisted, 3)}"
        checks.append(error("weights.index", message, f"Download {INDEX} and all shards again, from one revision."))
    return checks


def _duplicates(by_file: dict[str, tuple[TensorInfo, ...]]) -> list[HealthCheck]:
    """Without an index, a tensor in two files means that two models lie in one folder."""
    seen: dict[str, str] = {}
    for file, tensors in by_file.items():
        for tensor in tensors:
            other = seen.setdefault(tensor.name, file)
            if other != file:
                return [
                    error(
                        "weights.duplicates",
                        f"tensor {tensor.name} is in {other} and in {file}: files of two models are mixed",
                        "Keep only the files of one model in the folder.",
                    )
                ]
    return []


def find_shape(tensors: Iterable[TensorInfo], *endings: str, expected: tuple[int, int]) -> tuple[int, ...] | None:
    """The shape of the full-precision matrix whose name ends so: of several (multimodal models) the expected one."""
    first = None
    for tensor in tensors:
        if tensor.name.endswith(endings) and len(tensor.shape) == 2 and tensor.dtype in ("F32", "F16", "BF16", "F64"):
            if tensor.shape == expected:
                return tensor.shape
            first = first or tensor.shape
    return first
