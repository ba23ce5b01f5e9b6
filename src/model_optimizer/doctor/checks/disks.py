"""Disk: room and inodes where models and environments lie, and what kind of disk that is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from model_optimizer.doctor.read.places import NETWORK_TYPES, Place, in_container, is_wsl, places
from model_optimizer.doctor.read.system import cpu_flags, pairs
from model_optimizer.records.doctor import Hit, Seen, Survey
from model_optimizer.units import format_bytes

_GIB = 1 << 30
_FULL = 2 * _GIB
_NEARLY = 20 * _GIB
_FEW_INODES = 20_000
"""An environment with torch has about 15 000 files."""
_OURS = {"home": "Model-Optimizer's folder", "hub-cache": "the Hugging Face cache", "tmp": "temporary files"}


def room(survey: Survey) -> Iterator[Hit]:
    """A nearly full file system where models and environments lie, said once for each file system."""
    said: set[str] = set()
    for place in _wanted(survey):
        if place.mount in said or place.total <= 0:
            continue
        if place.role == "tmp":
            short, grave = place.available < _FULL, False
        else:
            short, grave = place.available < _NEARLY, place.available < _FULL
        if short:
            said.add(place.mount)
            yield Hit(
                id="disk-nearly-full",
                evidence=(_seen(place, f"{format_bytes(place.available)} free of {format_bytes(place.total)}"),),
                values=_values(place, survey) | {"free": format_bytes(place.available)},
                severity="error" if grave else "warning",
            )


def inodes(survey: Survey) -> Iterator[Hit]:
    """Hardly any file more can be made, however much room there is. File systems without a fixed number say 0."""
    said: set[str] = set()
    for place in _wanted(survey):
        if place.inodes > 0 and place.inodes_free < _FEW_INODES and place.mount not in said:
            said.add(place.mount)
            yield Hit(
                id="disk-inodes-short",
                evidence=(_seen(place, f"{place.inodes_free} of {place.inodes} inodes free"),),
                values=_values(place, survey) | {"free": place.inodes_free},
                severity="error" if place.inodes_free < 100 else "warning",
            )


def kind(survey: Survey) -> Iterator[Hit]:
    """Models on a network, in memory, in a container's own layer, or on a spinning disk."""
    virtual = "hypervisor" in cpu_flags(survey.text("cpuinfo"))
    said: set[str] = set()
    for place in _wanted(survey):
        if place.role == "tmp" or place.mount in said:
            continue
        name = None
        if place.kind in NETWORK_TYPES:
            name = "disk-on-windows" if is_wsl(survey) and place.mount.startswith("/mnt/") else "disk-network"
        elif place.kind in ("tmpfs", "ramfs"):
            name = "disk-in-memory"
        elif place.kind == "overlay" and in_container(survey) is not None:
            name = "disk-in-container-layer"
        elif place.rotational and not virtual and re.match(r"/dev/(?:sd|hd|md|dm-|mapper/)", place.device):
            name = "disk-spinning"  # virtual disks call themselves spinning, too
        if name is not None:
            said.add(place.mount)
            yield Hit(
                id=name,
                evidence=(_seen(place, f"{place.device} mounted on {place.mount}, type {place.kind}"),),
                values=_values(place, survey) | {"kind": place.kind, "mount": place.mount},
            )


def writable(survey: Survey) -> Iterator[Hit]:
    """Our own folder cannot be written."""
    for place in places(survey):
        if place.role == "home" and place.writable is False:
            yield Hit(
                id="home-not-writable",
                evidence=(_seen(place, "may not be written by this user"),),
                values=_values(place, survey),
            )


def token_file(survey: Survey) -> Iterator[Hit]:
    """A token's file that others on this machine can read."""
    hub = pairs(survey.text("hub"), ": ")
    mode, path = hub.get("token-file-mode", ""), hub.get("token-file", "")
    if path and re.fullmatch(r"[0-7]{3}", mode) and int(mode, 8) & 0o044 and not path.startswith("/mnt/"):
        yield Hit(
            id="hub-token-readable",
            evidence=(Seen(source=path, text=f"mode {mode}"),),
            values={"path": path},
        )


def _wanted(survey: Survey) -> list[Place]:
    return [place for place in places(survey) if place.role in _OURS]


def _seen(place: Place, text: str) -> Seen:
    return Seen(source=f"file system of {place.path}", text=text)


def _values(place: Place, survey: Survey) -> dict[str, str | int | float]:
    roles = [_OURS[p.role] for p in _wanted(survey) if p.mount == place.mount]
    return {"path": place.path, "what": " and ".join(roles[:2]) or place.path}


CHECKS = (room, inodes, kind, writable, token_file)
