"""From what the user typed to files on this disk: a path as it is, or a model of the Hugging Face Hub, downloaded.

The download is huggingface_hub's own: its cache, its resuming, its mirrors (HF_ENDPOINT). Only data is fetched, never
pickles or Python. The token comes from the environment (HF_TOKEN) and goes nowhere else.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model_optimizer.errors import CheckpointInvalid, DiskFull, ModelOptimizerError, UnknownName
from model_optimizer.host.checkpoint import PICKLE_ENDINGS
from model_optimizer.host.hub_errors import explain
from model_optimizer.host.hub_progress import progress_class
from model_optimizer.host.spec_checks import listed
from model_optimizer.records.base import Emit
from model_optimizer.units import format_bytes

WANTED = (".safetensors", ".json", ".txt", ".jinja", ".model", ".tiktoken")
_PATH_ENDINGS = (".gguf", ".safetensors", ".json", *PICKLE_ENDINGS)
_HUB = re.compile(r"^(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?P<file>/[\w./ +-]+\.gguf)?(?:@(?P<revision>[\w./-]+))?$")
_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_SPARE_BYTES = 512 << 20  # a disk filled to the last byte stops more than us


class HubModel(NamedTuple):
    """``org/name``, ``org/name@revision`` or, for GGUF, ``org/name/file.gguf``."""

    repo: str
    revision: str | None
    file: str | None


def resolve_model(ref: str, *, emit: Emit, cache_dir: Path | None = None) -> Path:
    """The folder or file that ``ref`` means.

    An existing path is returned as it is. A hub id is downloaded (safetensors, JSON, tokenizer, templates; never
    ``.bin``, ``.pt`` or ``.py``) into huggingface_hub's cache, or into ``cache_dir``. ``emit`` is called from download
    threads, one at a time. Raises UnknownName (no such path or model), NetworkUnavailable (offline, hub down, no
    access), DiskFull, NotWritable, CheckpointInvalid (only pickles there).
    """
    path = _as_path(ref)
    if path is not None and _exists(path):
        return path
    hub = parse_hub_id(ref)
    if hub is None:
        raise _no_such_path(ref, path)
    try:
        return _download(hub, emit, cache_dir)
    except UnknownName as unknown:
        near = _near(path) if path is not None else []
        if not near:
            raise
        raise UnknownName(
            unknown.what, cause=unknown.cause, fix=f"Did you mean the folder {listed(near)}? Else: {unknown.fix}"
        ) from None


def parse_hub_id(ref: str) -> HubModel | None:
    """``None`` where ``ref`` is written like a path, or is no hub id."""
    if ref.startswith((".", "/", "~")) or "\\" in ref or ".." in ref:
        return None
    match = _HUB.match(ref)
    if match is None or (match["file"] is None and match["repo"].endswith(_PATH_ENDINGS)):
        return None
    return HubModel(match["repo"], match["revision"], match["file"][1:] if match["file"] else None)


def _as_path(ref: str) -> Path | None:
    try:
        return Path(ref).expanduser() if ref.strip() and "\0" not in ref else None
    except RuntimeError:  # ~someone-unknown
        return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return True  # reading it will say what is forbidden
    except OSError:  # a name longer than the file system allows, for example
        return False


def _near(path: Path) -> list[str]:
    """Names beside the missing one that look like it."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        path, parent = parent, parent.parent
    try:
        names = [entry.name for entry in parent.iterdir()]
    except OSError:
        return []
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(path.name.lower(), by_lower, n=3, cutoff=0.6)
    return [str(parent / by_lower[name]) for name in close]


def _no_such_path(ref: str, path: Path | None) -> UnknownName:
    near = _near(path) if path is not None else []
    if near:
        fix = f"Did you mean {listed(near)}?"
    elif path is not None and path.parent != path and not path.parent.exists():
        fix = f"The folder {path.parent} does not exist either: check the path."
    else:
        fix = "Check the path. A model of the Hugging Face Hub is written org/name, for example Qwen/Qwen3-0.6B."
    return UnknownName(f"there is no model {ref!r}", cause="no file or folder of this name exists here", fix=fix)


def _download(hub: HubModel, emit: Emit, cache_dir: Path | None) -> Path:
    # Its import costs 0.3 s, and most runs have their model on disk.
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415

    token: str | bool = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or False
    endpoint = os.environ.get("HF_ENDPOINT") or None
    cache = cache_dir or _default_cache()
    common: dict[str, Any] = {"revision": hub.revision, "cache_dir": cache, "token": token, "endpoint": endpoint}
    try:
        emit("note", text=f"asking the hub for {hub.repo}")
        info = HfApi(endpoint=endpoint, token=token).model_info(
            hub.repo, revision=hub.revision, files_metadata=True, timeout=20
        )
        sizes = {s.rfilename: int(s.size or 0) for s in info.siblings or ()}
        chosen = _choose(hub, sizes)
        missing = {name: sizes[name] for name in chosen if not _cached(hub.repo, name, cache, info.sha)}
        _require_space(hub.repo, sum(missing.values()), cache)
        folder = snapshot_download(
            hub.repo,
            allow_patterns=chosen,
            max_workers=4,
            tqdm_class=progress_class(f"download {hub.repo}", sum(missing.values()), emit),
            **common,
        )
    except ModelOptimizerError:
        raise
    except Exception as caught:
        problem = explain(caught, hub.repo, hub.revision, cache)
        if problem is None:
            raise
        if not problem.maybe_cached:
            raise problem.error from caught
        return _cached_copy(hub, cache, emit, problem.error)
    return Path(folder) / hub.file if hub.file else Path(folder)


def _choose(hub: HubModel, sizes: Mapping[str, int]) -> list[str]:
    """Which files of the repository make up the model. Raises where there are none that may be loaded."""
    if hub.file is not None:
        if hub.file not in sizes:
            near = difflib.get_close_matches(hub.file, [n for n in sizes if n.endswith(".gguf")], n=3, cutoff=0.3)
            raise UnknownName(
                f"{hub.repo} has no file {hub.file}",
                cause="it is not in the repository's list",
                fix=f"Did you mean {listed(near)}?" if near else "Look at the repository's files.",
            )
        split = _SPLIT.search(hub.file)
        if split is None:
            return [hub.file]
        part = re.compile(re.escape(_SPLIT.sub("", hub.file)) + rf"-\d{{5}}-of-{split[1]}\.gguf")
        return [name for name in sizes if part.fullmatch(name)]
    chosen = [n for n in sizes if "/" not in n and n.endswith(WANTED) and not n.startswith(("consolidated", "."))]
    if any(name.endswith(".safetensors") for name in chosen):
        return chosen
    gguf = sorted(name for name in sizes if name.endswith(".gguf"))
    pickles = sorted(name for name in sizes if name.endswith(PICKLE_ENDINGS))
    if gguf:
        fix = f"Name the file you want: {hub.repo}/{gguf[0]}"
        raise CheckpointInvalid(f"{hub.repo} holds GGUF files, not one model", cause=f"{listed(gguf)}", fix=fix)
    raise CheckpointInvalid(
        f"{hub.repo} has no safetensors weights",
        cause=f"only Python pickles ({listed(pickles, 3)}), which can run any code when loaded; nothing was downloaded"
        if pickles
        else "there are no weights in the repository; nothing was downloaded",
        fix="Use a repository or revision with safetensors files; many models have one under refs/pr/… or as a copy.",
    )


def _default_cache() -> Path:
    from huggingface_hub import constants  # noqa: PLC0415 - see _download

    return Path(constants.HF_HUB_CACHE)


def _cached(repo: str, name: str, cache: Path, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - see _download

    return isinstance(try_to_load_from_cache(repo, name, cache_dir=cache, revision=revision), str)


def _require_space(repo: str, needed: int, cache: Path) -> None:
    folder = cache
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed and needed + _SPARE_BYTES > free:
        raise DiskFull(
            f"not enough disk space to download {repo}",
            cause=f"{format_bytes(needed)} are to be downloaded, {format_bytes(free)} are free on the disk of {folder}",
            fix="Free some space there, or set HF_HOME to a folder on a larger disk.",
        )


def _cached_copy(hub: HubModel, cache: Path, emit: Emit, error: ModelOptimizerError) -> Path:
    """An earlier download, where the hub cannot be asked. Raises ``error`` where there is none."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - see _download

    wanted = [_SPLIT.sub("-*.gguf", hub.file)] if hub.file else [f"*{ending}" for ending in WANTED]
    try:
        folder = Path(
            snapshot_download(
                hub.repo,
                revision=hub.revision,
                cache_dir=cache,
                local_files_only=True,
                allow_patterns=wanted,
                ignore_patterns=None if hub.file else ["*/*", "consolidated*", ".*"],
            )
        )
    except (OSError, ValueError):  # nothing there, or not all of it
        raise error from None
    found = folder / hub.file if hub.file else folder
    if hub.file and not found.exists():
        raise error
    emit("note", text=f"{error.cause}: using the copy of {hub.repo} downloaded earlier")
    return found
