"""Docker and NVIDIA's container toolkit, as ``docker info`` and the toolkit's files tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from model_optimizer.doctor.read.places import in_container, is_wsl, json_object, nvidia_gpu
from model_optimizer.doctor.read.system import lines_of, pairs
from model_optimizer.records.doctor import Hit, Seen, Severity, Survey

_SOURCE = "docker info"
_OLD_TOOLKIT = (1, 17, 8)
"""Versions before this one let a container take over its host (CVE-2025-23266, NVIDIA's bulletin of July 2025)."""


def docker(survey: Survey) -> Iterator[Hit]:
    """Docker that is installed and cannot be used, or is of a kind that has trouble with GPUs."""
    programs = pairs(survey.text("programs"), ": ")
    if "docker" not in programs:
        if (
            nvidia_gpu(survey) is not None
            and "podman" not in programs
            and in_container(survey) is None
            and _looked(survey)
        ):
            yield Hit(id="docker-absent", evidence=(Seen(source="PATH", text="no docker, no podman"),))
        return
    info = _info(survey)
    trouble = _trouble(survey, info)
    weight: Severity = "info" if nvidia_gpu(survey) is None else "warning"  # nothing of ours needs docker on a CPU
    if re.search(r"permission denied", trouble, re.IGNORECASE):
        yield Hit(id="docker-permission-denied", evidence=(Seen(source=_SOURCE, text=trouble),), severity=weight)
    elif re.search(
        r"cannot connect|is the docker daemon running|connection refused|error during connect", trouble, re.I
    ):
        yield Hit(id="docker-daemon-down", evidence=(Seen(source=_SOURCE, text=trouble),), severity=weight)
    elif survey.status("docker-info") == "timeout":
        yield Hit(id="docker-daemon-hangs", evidence=(Seen(source=_SOURCE, text="no answer within the time limit"),))
    if "/snap/" in programs["docker"] or str(info.get("DockerRootDir", "")).startswith("/var/snap/"):
        yield Hit(id="docker-from-snap", evidence=(Seen(source="docker", text=programs["docker"]),))
    options = info.get("SecurityOptions")
    if isinstance(options, list) and "name=rootless" in options:
        yield Hit(id="docker-rootless", evidence=(Seen(source=_SOURCE, text="SecurityOptions: name=rootless"),))


def toolkit(survey: Survey) -> Iterator[Hit]:
    """With an NVIDIA GPU here: is there a toolkit, does docker know it, is it a safe version."""
    gpu, info = nvidia_gpu(survey), _info(survey)
    programs = pairs(survey.text("programs"), ": ")
    served = bool(info.get("ServerVersion"))
    desktop = "desktop" in str(info.get("OperatingSystem", "")).lower()  # brings its own way to the GPU
    if gpu is None or not served or desktop or in_container(survey) is not None:
        return
    runtimes = info.get("Runtimes")
    names = sorted(runtimes) if isinstance(runtimes, dict) else []
    devices = [path for path, _ in lines_of(survey.text("cdi"))]
    shown = (gpu, Seen(source=_SOURCE, text=f"Runtimes: {' '.join(names) or 'none named'}"))
    has_toolkit = bool({"nvidia-ctk", "nvidia-container-cli"} & programs.keys())
    if not has_toolkit and "nvidia" not in names:
        yield Hit(id="container-toolkit-missing", evidence=(*shown, Seen(source="PATH", text="no nvidia-ctk")))
    elif has_toolkit and "nvidia" not in names and not devices:
        yield Hit(id="container-runtime-not-registered", evidence=shown)
    version = re.search(r"version (\d{1,6})\.(\d{1,6})\.(\d{1,6})\b", survey.text("nvidia-ctk"))
    if version and tuple(int(part) for part in version.groups()) < _OLD_TOOLKIT:
        found = ".".join(version.groups())
        yield Hit(
            id="container-toolkit-old",
            evidence=(Seen(source="nvidia-ctk --version", text=version[0]),),
            values={"version": found},
        )


def control_groups(survey: Survey) -> Iterator[Hit]:
    """Running containers lose their GPU where systemd and docker both write the device groups."""
    info, gpu = _info(survey), nvidia_gpu(survey)
    if gpu is None or info.get("CgroupDriver") != "systemd" or lines_of(survey.text("cdi")) or is_wsl(survey):
        return
    runtimes = info.get("Runtimes")
    if isinstance(runtimes, dict) and "nvidia" in runtimes and not lines_of(survey.text("char-devices")):
        line = f"CgroupDriver: systemd, CgroupVersion: {info.get('CgroupVersion', '?')}"
        yield Hit(id="container-loses-gpu", evidence=(Seen(source=_SOURCE, text=line), gpu))


def _info(survey: Survey) -> dict[str, Any]:
    """``docker info --format '{{json .}}'``; warnings may stand before it."""
    text = survey.text("docker-info")
    return next((found for line in text.splitlines() if (found := json_object(line))), {})


def _trouble(survey: Survey, info: dict[str, Any]) -> str:
    """Why the daemon did not answer; empty where it did. The first line that says so."""
    errors = info.get("ServerErrors")
    lines = [str(error) for error in errors] if isinstance(errors, list) else []
    if not lines and not info.get("ServerVersion"):
        lines = [line for line in survey.text("docker-info").splitlines() if not line.lstrip().startswith("{")]
    wanted = r"permission denied|cannot connect|daemon running|connection refused|error during connect"
    return next((line.strip()[:200] for line in lines if re.search(wanted, line, re.IGNORECASE)), "")


def _looked(survey: Survey) -> bool:
    return survey.status("programs") == "ok"


CHECKS = (docker, toolkit, control_groups)
