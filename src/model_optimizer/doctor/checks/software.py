"""Operating system, C library, Python, encodings, clock, and variables that leak into environments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from model_optimizer.doctor.read.places import env, glibc, json_lines, machine, os_release
from model_optimizer.doctor.read.system import pairs, version_of, whole
from model_optimizer.records.doctor import Hit, Seen, Survey

_OLDEST_GLIBC = (2, 28)
"""torch's wheels carry the tag manylinux_2_28 (read in the installed 2.13)."""
_OLDEST_KERNEL = (4, 18)
_PYTHONS = ((3, 11), (3, 13))
_NOT_BEFORE = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""This program is younger than that."""
_AHEAD_S = 600
_OFF_S = 1.0


def system(survey: Survey) -> Iterator[Hit]:
    """Systems and machines for which no locked environments exist, musl, an old glibc, an old kernel."""
    python = pairs(survey.text("python"), ": ")
    name, kind, libc = python.get("system", ""), machine(survey), python.get("libc", "")
    here = Seen(source="platform", text=f"{name} {kind}, Python {python.get('version', '?')}, {libc or 'C library?'}")
    if name and name != "Linux":
        yield Hit(id="system-not-linux", evidence=(here,), values={"system": {"Darwin": "macOS"}.get(name, name)})
        return
    if name and kind and kind != "x86_64":
        yield Hit(id="machine-without-locks", evidence=(here,), values={"machine": kind})
    if libc.startswith("musl"):
        pretty = os_release(survey).get("PRETTY_NAME", "This distribution")
        yield Hit(id="libc-musl", evidence=(here,), values={"system": pretty})
    version = glibc(survey)
    if version and version < _OLDEST_GLIBC:
        found = ".".join(map(str, version))
        yield Hit(id="glibc-old", evidence=(here,), values={"version": found, "needed": "2.28"})
    kernel = survey.text("kernel").strip()
    release = re.match(r"Linux version (\S+)", kernel)
    running = version_of(release[1])[:2] if release else ()
    if running and running < _OLDEST_KERNEL and release:
        yield Hit(
            id="kernel-old",
            evidence=(Seen(source="/proc/version", text=kernel[:120]),),
            values={"version": release[1]},
        )


def interpreter(survey: Survey) -> Iterator[Hit]:
    """A Python for which the locked environments were not made; an encoding that is not UTF-8."""
    python = pairs(survey.text("python"), ": ")
    version = version_of(python.get("version", ""))[:2]
    if version and not _PYTHONS[0] <= version <= _PYTHONS[1]:
        seen = Seen(source=python.get("executable", "python"), text=f"Python {python['version']}")
        yield Hit(id="python-unsupported", evidence=(seen,), values={"version": python["version"]})
    encoding = python.get("preferred-encoding", "")
    if encoding and encoding.lower().replace("-", "").replace("_", "") != "utf8":
        known = env(survey)
        shown = ", ".join(f"{n}={known[n]}" for n in ("LC_ALL", "LC_CTYPE", "LANG") if n in known)
        yield Hit(
            id="locale-not-utf8",
            evidence=(Seen(source="locale", text=f"{encoding} ({shown or 'LANG is not set'})"),),
            values={"encoding": encoding},
        )


def leaks(survey: Survey) -> Iterator[Hit]:
    """Variables that put this machine's Python or libraries in front of an environment's own."""
    known = env(survey)
    if home := known.get("PYTHONHOME"):
        yield Hit(id="pythonhome-set", evidence=(Seen(source="environment", text=f"PYTHONHOME={home}"),))
    if path := known.get("PYTHONPATH", "").strip(":"):
        yield Hit(id="pythonpath-set", evidence=(Seen(source="environment", text=f"PYTHONPATH={path}"),))
    libraries = [part for part in known.get("LD_LIBRARY_PATH", "").split(":") if part]
    # drivers' own folders are put there by container images and WSL2, and belong there
    risky = [p for p in libraries if re.search(r"cuda|cudnn|tensorrt|nccl|torch|conda|rocm|site-packages", p, re.I)]
    risky = [p for p in risky if not re.search(r"/(?:nvidia|wsl)/lib(?:64)?/?$|/compat/?", p)]
    if risky:
        yield Hit(
            id="library-path-set",
            evidence=(Seen(source="environment", text=f"LD_LIBRARY_PATH={':'.join(libraries)}"),),
            values={"folders": ", ".join(risky[:3])},
        )


def clock(survey: Survey) -> Iterator[Hit]:
    """A clock that is wrong, seen from files of the future, an impossible date, or chrony; or that nobody sets."""
    read = pairs(survey.text("clock"), ": ")
    now = whole(read.get("now", ""))
    newest, _, path = read.get("newest-file", "").partition(" ")
    changed = whole(newest)
    if now is not None and now < _NOT_BEFORE:
        yield Hit(id="clock-wrong", evidence=(Seen(source="clock", text=_date(now)),), values={"now": _date(now)})
    elif now is not None and changed is not None and now + _AHEAD_S < changed < now + 3e9:
        yield Hit(
            id="clock-behind-files",
            evidence=(
                Seen(source="clock", text=_date(now)),
                Seen(source=path or "newest file", text=f"changed {_date(changed)}"),
            ),
            values={"ahead": f"{(changed - now) / 60:.0f}", "path": path},
        )
    chrony = re.search(r"^System time\s*:\s*(\d+\.\d+) seconds (slow|fast)", survey.text("chrony"), re.MULTILINE)
    if chrony and float(chrony[1]) > _OFF_S:
        yield Hit(
            id="clock-off",
            evidence=(Seen(source="chronyc tracking", text=chrony[0]),),
            values={"seconds": f"{float(chrony[1]):.1f}", "way": "behind" if chrony[2] == "slow" else "ahead"},
        )
    elif not chrony and pairs(survey.text("timedatectl")).get("NTPSynchronized") == "no":
        shown = pairs(survey.text("timedatectl"))
        line = f"NTPSynchronized=no, NTP={shown.get('NTP', '?')}"
        yield Hit(id="clock-not-set", evidence=(Seen(source="timedatectl show", text=line),))


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s since 1970"


def tools(survey: Survey) -> Iterator[Hit]:
    """Tool environments of ours that cannot start, seen without starting them."""
    for entry in json_lines(survey.text("tool-environments")):
        folder, python = str(entry.get("folder", "")), str(entry.get("python", ""))
        name = re.sub(r"-[0-9a-f]{12}$", "", folder.rpartition("/")[2])
        if not name:
            continue
        if entry.get("interpreter") is False:
            seen = Seen(source=f"{folder}/bin/python", text=f"leads to {python}, which cannot be executed")
            yield Hit(id="tool-lost-python", evidence=(seen,), values={"name": name})
        elif entry.get("damage"):
            seen = Seen(source=folder, text=str(entry["damage"]))
            yield Hit(id="tool-damaged", evidence=(seen,), values={"name": name})


CHECKS = (system, interpreter, leaks, clock, tools)
