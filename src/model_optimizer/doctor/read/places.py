"""Disks, control groups, containers: what the probes of several sources wrote, as values."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from model_optimizer.doctor.read.system import lines_of, pairs, version_of, whole
from model_optimizer.records.doctor import Seen, Survey

NETWORK_TYPES = frozenset(
    ("nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "9p", "drvfs", "fuse.sshfs", "fuse.s3fs", "fuse.rclone",
     "fuse.gcsfuse", "fuse.mount-s3", "fuse.blobfuse2", "ceph", "fuse.ceph", "lustre", "glusterfs", "fuse.glusterfs",
     "beegfs", "gpfs", "afs", "fuse.juicefs", "juicefs", "wekafs")
)  # fmt: skip
"""File system types that go over a network (or, in WSL2, to Windows)."""


class Place(NamedTuple):
    """A folder that matters and the file system on which it lies; sizes in bytes, ``rotational``: a spinning disk."""

    role: str
    path: str
    mount: str
    kind: str
    device: str
    total: int
    available: int
    inodes: int
    inodes_free: int
    rotational: bool | None = None
    writable: bool | None = None


class Group(NamedTuple):
    """The tightest limits of this process's control groups: bytes, cores; ``None`` = none. With where they stand."""

    memory: int | None
    memory_source: str
    cores: float | None
    cores_source: str


def places(survey: Survey) -> tuple[Place, ...]:
    """The folders of the probe ``places``, one JSON object a line."""
    found = []
    for entry in json_lines(survey.text("places")):
        numbers = [entry.get(name) for name in ("total", "available", "inodes", "inodes_free")]
        words = [entry.get(name) for name in ("role", "path", "mount", "kind", "device")]
        if all(isinstance(n, int) and n >= 0 for n in numbers) and all(isinstance(w, str) for w in words):
            flags = [
                entry.get(name) if isinstance(entry.get(name), bool) else None for name in ("rotational", "writable")
            ]
            found.append(Place(*words, *numbers, *flags))  # type: ignore[arg-type]  # checked just above
    return tuple(found)


def json_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a text, one a line; lines that are none are passed over."""
    found = []
    for line in text.splitlines():
        value = json_object(line)
        if value:
            found.append(value)
    return found


def json_object(text: str) -> dict[str, Any]:
    """The text as a JSON object; empty where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def group(survey: Survey) -> Group:
    """The tightest limits in the probe ``cgroup-limits`` (``path: value`` lines, versions 1 and 2)."""
    memory, cores = None, None
    memory_source = cores_source = ""
    files = lines_of(survey.text("cgroup-limits"))
    by_path = dict(files)
    for path, value in files:
        name = path.rpartition("/")[2]
        if name in ("memory.max", "memory.limit_in_bytes"):
            limit = whole(value)
            if limit is not None and 0 < limit < 1 << 60 and (memory is None or limit < memory):
                memory, memory_source = limit, path
        elif name in ("cpu.max", "cpu.cfs_quota_us"):
            quota, _, period = value.partition(" ")
            if name == "cpu.cfs_quota_us":
                period = by_path.get(path.replace("cfs_quota_us", "cfs_period_us"), "100000")
            used, each = whole(quota), whole(period)
            if used and each and used > 0 and each > 0 and (cores is None or used / each < cores):
                cores, cores_source = used / each, path
    return Group(memory, memory_source, cores, cores_source)


def env(survey: Survey) -> dict[str, str]:
    """The variables of the probe ``environment``; secrets were struck out when it was read."""
    return pairs_unquoted(survey.text("environment"))


def pairs_unquoted(text: str) -> dict[str, str]:
    """``NAME=value`` lines, values as they stand."""
    split = (line.partition("=") for line in text.splitlines())
    return {name: value for name, sign, value in split if sign and re.fullmatch(r"[A-Za-z_]\w*", name)}


def in_container(survey: Survey) -> str | None:
    """What shows that these readings come from inside a container; ``None`` where nothing does.

    ``/.dockerenv`` also lies in images that were unpacked into a virtual machine; there the namespaces are the
    machine's first ones.
    """
    marks = pairs(survey.text("container-marks"), ": ")
    if marks.get("namespaces") == "the machine's own":
        return None
    for name in ("KUBERNETES_SERVICE_HOST", "/run/.containerenv", "container", "/.dockerenv"):
        if name in marks:
            return f"{name}: {marks[name]}"
    if re.search(r"/(?:docker|kubepods|lxc|libpod|containerd)\b|\b(?:docker|libpod|cri-containerd)-[0-9a-f]{12}",
                 marks.get("/proc/1/cgroup", "")):  # fmt: skip
        return f"/proc/1/cgroup: {marks['/proc/1/cgroup']}"
    return None


def is_wsl(survey: Survey) -> bool:
    """True in the Windows Subsystem for Linux, version 1 or 2."""
    return bool(re.search(r"microsoft", survey.text("kernel"), re.IGNORECASE))


def os_release(survey: Survey) -> dict[str, str]:
    """``/etc/os-release``."""
    return pairs(survey.text("os-release"))


def glibc(survey: Survey) -> tuple[int, ...]:
    """The C library's version, empty where it is not glibc or not known."""
    libc = pairs(survey.text("python"), ": ").get("libc", "")
    return version_of(libc) if libc.startswith("glibc") else ()


def machine(survey: Survey) -> str:
    """``x86_64``, ``aarch64`` …; empty where it was not read."""
    named = pairs(survey.text("python"), ": ").get("machine", "").lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(named, named)


def nvidia_gpu(survey: Survey) -> Seen | None:
    """What shows that an NVIDIA GPU is in the machine, with or without a driver; ``None`` where nothing does."""
    smi = re.search(r"^GPU \d+: .+$|^Attached GPUs\s*: [1-9]\d*", survey.text("nvidia-smi-l"), re.MULTILINE)
    if smi:
        return Seen(source="nvidia-smi -L", text=smi[0])
    vendors = dict(lines_of(survey.text("pci-display")))
    for path, value in vendors.items():
        folder = path.rpartition("/")[0]
        if path.endswith("/vendor") and value == "0x10de" and vendors.get(f"{folder}/class", "").startswith("0x03"):
            return Seen(source=path, text=value)
    return None
