"""Reads a host, and changes nothing on it: every probe has a time limit, and what it read is kept as it was read."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from model_optimizer.errors import HostError, TimedOut
from model_optimizer.host import disk_texts, system_texts
from model_optimizer.host.process import run
from model_optimizer.host.system_texts import masked
from model_optimizer.records.doctor import Reading, ReadingStatus, Survey

MOST_CHARS = 400_000
COMMAND_S = 10.0
"""On a machine with a broken driver nvidia-smi hangs; so may docker."""

_ROOT = Path("/")


class Probe(NamedTuple):
    """One source. ``ask`` gives its text; ``command`` is run instead where it is set."""

    source: str
    ask: Callable[[], str] | None = None
    command: tuple[str, ...] = ()
    limit_s: float = COMMAND_S


FILES = {
    "meminfo": "proc/meminfo",
    "cpuinfo": "proc/cpuinfo",
    "stat": "proc/stat",
    "loadavg": "proc/loadavg",
    "vmstat": "proc/vmstat",
    "limits": "proc/self/limits",
    "kernel": "proc/version",
    "os-release": "etc/os-release",
    "numa-balancing": "proc/sys/kernel/numa_balancing",
    "huge-pages": "sys/kernel/mm/transparent_hugepage/enabled",
    "modules": "proc/modules",
    "cmdline": "proc/cmdline",
    "nvidia-version": "proc/driver/nvidia/version",
    "nvidia-params": "proc/driver/nvidia/params",
    "tegra": "etc/nv_tegra_release",
    "rocm-version": "opt/rocm/.info/version",
    "groups": "etc/group",
    "tcp4": "proc/net/tcp",
    "tcp6": "proc/net/tcp6",
}

GLOBS = {
    "pci-display": ("sys/bus/pci/devices/*/class", "sys/bus/pci/devices/*/vendor", "sys/bus/pci/devices/*/device"),
    "pci-links": (
        "sys/bus/pci/devices/*/current_link_speed", "sys/bus/pci/devices/*/max_link_speed",
        "sys/bus/pci/devices/*/current_link_width", "sys/bus/pci/devices/*/max_link_width",
    ),
    "governors": (
        "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        "sys/devices/system/cpu/cpu*/cpufreq/scaling_driver",
        "sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference",
    ),
    "numa": ("sys/devices/system/node/has_cpu", "sys/devices/system/node/node*/cpulist"),
    "infiniband": ("sys/class/infiniband/*/node_type",),
    "overcommit": ("proc/sys/vm/overcommit_memory", "proc/sys/vm/overcommit_ratio"),
    "cdi": ("etc/cdi/*", "var/run/cdi/*"),
    "iommu": ("sys/class/iommu/*/type",),
    "kfd": ("sys/class/kfd/kfd/topology/nodes/*/properties",),
    "efi-secure-boot": ("sys/firmware/efi/efivars/SecureBoot-*",),
}  # fmt: skip

COMMANDS = {
    "nvidia-smi-xml": ("nvidia-smi", "-q", "-x"),
    "nvidia-smi-l": ("nvidia-smi", "-L"),
    "nvidia-topo": ("nvidia-smi", "topo", "-m"),
    "dmesg": ("dmesg", "--notime"),
    "mokutil": ("mokutil", "--sb-state"),
    "dkms": ("dkms", "status"),
    "fabric-manager": ("systemctl", "is-active", "nvidia-fabricmanager"),
    "nvpmodel": ("nvpmodel", "-q"),
    "docker-info": ("docker", "info", "--format", "{{json .}}"),
    "nvidia-ctk": ("nvidia-ctk", "--version"),
    "chrony": ("chronyc", "-n", "tracking"),
    "timedatectl": ("timedatectl", "show"),
    "ss": ("ss", "-Hltnp"),
}


def take_survey(
    *,
    home: Path,
    root: Path = _ROOT,
    environ: Mapping[str, str] | None = None,
    extra: Mapping[str, Probe] | None = None,
) -> Survey:
    """Ask everything, at once, and note for each source how that went.

    ``home`` is our own folder (models and environments lie there); ``root`` stands for ``/`` in tests. Secrets are
    struck out before anything is kept.
    """
    env = os.environ if environ is None else environ
    asked = {**_probes(home, root, env), **(extra or {})}
    with ThreadPoolExecutor(max_workers=8) as pool:
        readings = dict(zip(asked, pool.map(_read, asked.values()), strict=True))
    return Survey(taken_at=datetime.now(UTC).isoformat(timespec="seconds"), readings=readings)


def _probes(home: Path, root: Path, env: Mapping[str, str]) -> dict[str, Probe]:
    folders = {"home": home, "hub-cache": system_texts.hub_cache(env), "tmp": Path(env.get("TMPDIR") or "/tmp")}  # noqa: S108
    folders |= {"shm": Path("/dev/shm"), "root": root}  # noqa: S108
    composed: dict[str, tuple[str, Callable[[], str]]] = {
        "environment": ("environment", lambda: system_texts.environment(env)),
        "hub": ("Hugging Face cache and token", lambda: system_texts.hub(env)),
        "python": ("platform", system_texts.python),
        "programs": ("PATH", system_texts.programs),
        "container-marks": ("container marks", lambda: system_texts.container_marks(root, env)),
        "cgroup-limits": ("/sys/fs/cgroup", lambda: system_texts.cgroup_limits(root)),
        "package-index": ("pip settings", lambda: system_texts.package_index(env)),
        "clock": ("clock", lambda: system_texts.clock([root / "etc", home])),
        "tool-environments": (f"{home}/tools", lambda: system_texts.tool_environments(home / "tools")),
        "places": ("file systems", lambda: disk_texts.place_lines(folders, root)),
        "wslconfig": (".wslconfig", lambda: "\n".join(map(_text, sorted(root.glob("mnt/c/Users/*/.wslconfig"))))),
        "nvidia-nodes": ("/dev", lambda: _nodes(root)),
        "kernel-headers": ("/lib/modules", lambda: _headers(root)),
        "char-devices": ("/dev/char", lambda: _links(root / "dev/char", "nvidia")),
    }
    found = {name: Probe(f"/{path}", lambda path=path: _text(root / path)) for name, path in FILES.items()}  # type: ignore[misc]
    found |= {
        name: Probe("/" + patterns[0], lambda patterns=patterns: system_texts.files(patterns, root))  # type: ignore[misc]
        for name, patterns in GLOBS.items()
    }
    found |= {name: Probe(source, ask) for name, (source, ask) in composed.items()}
    found |= {name: Probe(" ".join(words), command=words) for name, words in COMMANDS.items()}
    return found


def _read(probe: Probe) -> Reading:
    """One reading. Nothing that goes wrong here is an error: it is what was found."""
    began = time.monotonic()
    try:
        status, text, code = _command(probe) if probe.command else ("ok", _asked(probe), None)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        status, text, code = "absent", "", None
    except PermissionError:
        status, text, code = "denied", "", None
    except TimedOut:
        status, text, code = "timeout", "", None
    except (OSError, HostError) as error:
        status, text, code = "failed", str(error), None
    except Exception as error:  # noqa: BLE001 (a probe that stumbles must not hide what the others found)
        status, text, code = "failed", f"{type(error).__name__}: {error}", None
    shown = masked(text[:MOST_CHARS])
    return Reading(
        source=probe.source, status=status, text=shown, exit_code=code, seconds=round(time.monotonic() - began, 3)
    )


def _asked(probe: Probe) -> str:
    """What the function gives, in a thread of its own: a network disk that is gone holds its reader for good.

    Raises what the function raises, and ``TimedOut``.
    """
    said: list[str] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            said.append(probe.ask() if probe.ask else "")
        except Exception as error:  # noqa: BLE001 (raised again below, where it is sorted)
            failed.append(error)

    thread = threading.Thread(target=ask, name=f"probe {probe.source}", daemon=True)
    thread.start()
    thread.join(probe.limit_s)
    if failed:
        raise failed[0]
    if not said:
        raise TimedOut(
            f"{probe.source} was not read in time",
            cause="the kernel does not answer, as with a network disk that is gone",
            fix="look at mount and at the kernel's log",
        )
    return said[0]


def _command(probe: Probe) -> tuple[ReadingStatus, str, int | None]:
    program = shutil.which(probe.command[0])
    if program is None:
        return "absent", "", None
    lines: list[str] = []
    done = run([program, *probe.command[1:]], timeout_s=probe.limit_s, on_line=lines.append)
    text = "\n".join(line.rstrip("\n") for line in lines)
    denied = done.returncode != 0 and "permitted" in text.lower() and len(lines) < 3
    return "denied" if denied else "ok" if done.returncode == 0 else "failed", text, done.returncode


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MOST_CHARS)


def _nodes(root: Path) -> str:
    """Device files of GPUs with their modes: ``/dev/nvidia0: crw-rw-rw- writable``."""
    lines = []
    for pattern in ("dev/nvidia*", "dev/kfd", "dev/dri/*", "dev/dxg", "dev/nvhost*", "dev/nvmap"):
        for path in sorted(root.glob(pattern))[:64]:
            word = "usable" if os.access(path, os.R_OK | os.W_OK) else "not usable by this user"
            lines.append(f"/{path.relative_to(root)}: {word}")
    return "\n".join(lines)


def _headers(root: Path) -> str:
    """Whether the running kernel's headers are there, for building a driver's module."""
    release = os.uname().release
    build = root / "lib/modules" / release / "build"
    return f"release: {release}\nheaders: {'there' if build.exists() else 'missing'}"


def _links(folder: Path, word: str) -> str:
    links = [path for path in folder.iterdir() if word in os.path.realpath(path)]
    return "\n".join(f"{path}: {os.path.realpath(path)}" for path in sorted(links)[:64])
