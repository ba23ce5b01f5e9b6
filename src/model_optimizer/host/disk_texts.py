"""The folders that matter, each with the file system it lies on: one JSON object a line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path("/")
_OCTAL = re.compile(r"\\([0-7]{3})")


def place_lines(folders: Mapping[str, Path], root: Path = _ROOT) -> str:
    """For each role and folder: mount point, kind, device, bytes and inodes in all and free to us, spinning or not.

    A folder that does not exist yet stands for the nearest parent that does. A folder that cannot be asked is left out.
    """
    mounts = mount_table(_read(root / "proc/self/mounts"))
    lines = []
    for role, folder in folders.items():
        there = next((p for p in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(p)), None)
        if there is None:
            continue
        try:
            real = Path(os.path.realpath(there))
            space, device = os.statvfs(real), real.stat().st_dev
        except OSError:
            continue
        source, mount, kind = _mount_of(real, mounts)
        entry = {
            "role": role, "path": str(folder), "mount": mount, "kind": kind, "device": source,
            "total": space.f_blocks * space.f_frsize, "available": space.f_bavail * space.f_frsize,
            "inodes": space.f_files, "inodes_free": space.f_favail,
            "rotational": _rotational(device, root), "writable": os.access(real, os.W_OK),
        }  # fmt: skip
        lines.append(json.dumps(entry))
    return "\n".join(lines)


def mount_table(text: str) -> list[tuple[str, str, str]]:
    """``/proc/self/mounts``: device, mount point and kind; spaces in names, written as ``\\040``, restored."""
    found = []
    for line in text.splitlines():
        words = [_OCTAL.sub(lambda match: chr(int(match[1], 8)), word) for word in line.split()]
        if len(words) >= 3:
            found.append((words[0], words[1], words[2]))
    return found


def _mount_of(path: Path, mounts: list[tuple[str, str, str]]) -> tuple[str, str, str]:
    """The mount that covers ``path``: the longest mount point, of equal ones the last, which hides the others."""
    covering = [entry for entry in mounts if path.is_relative_to(entry[1])]
    return max(reversed(covering), key=lambda entry: len(entry[1]), default=("unknown", "unknown", "unknown"))


def _rotational(device: int, root: Path) -> bool | None:
    """True for a spinning disk, as the kernel says; ``None`` where the file system lies on no block device."""
    block = root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for folder in (block, block.resolve().parent):  # a partition's queue is its disk's
        word = _read(folder / "queue/rotational").strip()
        if word in ("0", "1"):
            return word == "1"
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
