"""Is there a GPU, is its driver loaded, and do kernel module, library and device files belong together?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from model_optimizer.doctor.read.gpu import kernel_lines, module_version, modules, nvidia_log, of_vendor, shown
from model_optimizer.doctor.read.places import env, in_container, is_wsl
from model_optimizer.doctor.read.system import pairs
from model_optimizer.records.doctor import Hit, Seen, Survey

_OLDEST = 525
"""Branches before this one are out of support, and no current wheel of torch runs on them."""
_CUDA13 = 580
"""Linux driver of CUDA 13 (NVIDIA's release notes), which current wheels of vLLM and SGLang are built with."""


def loaded(survey: Survey) -> Iterator[Hit]:
    """A GPU on the bus and no driver for it: nouveau instead, a module that Secure Boot refused, or none at all."""
    cards = of_vendor(survey, "NVIDIA")
    if not cards or is_wsl(survey) or survey.text("nvidia-version") or nvidia_log(survey) is not None:
        return
    card, names = shown(cards[0]), modules(survey)
    refused = kernel_lines(
        survey,
        r"nvidia.*(?:key was rejected|required key not available)|Lockdown.*nvidia",
    )
    if "nouveau" in names:
        yield Hit(id="nouveau-loaded", evidence=(card, Seen(source="/proc/modules", text="nouveau")))
    elif refused or (_secure_boot(survey) and "nvidia" not in names and _built(survey)):
        line = refused[0] if refused else "SecureBoot enabled"
        yield Hit(id="module-not-signed", evidence=(card, Seen(source="dmesg" if refused else "mokutil", text=line)))
    elif in_container(survey) is not None:
        yield Hit(id="gpu-not-in-container", evidence=(card, Seen(source="container", text=in_container(survey) or "")))
    else:
        yield Hit(id="driver-missing", evidence=(card, Seen(source="/proc/driver/nvidia/version", text="absent")))
        headers = pairs(survey.text("kernel-headers"), ": ")
        if headers.get("headers") == "missing":
            seen = Seen(source=f"/lib/modules/{headers.get('release', '?')}/build", text="missing")
            yield Hit(id="kernel-headers-missing", evidence=(seen,), values={"release": headers.get("release", "")})


def answers(survey: Survey) -> Iterator[Hit]:
    """The module is there and nvidia-smi is not content."""
    version, line = module_version(survey)
    reading = survey.readings.get("nvidia-smi-xml")
    text = survey.text("nvidia-smi-xml") + "\n" + survey.text("nvidia-smi-l")
    said = next((x.strip() for x in text.splitlines() if x.strip() and not x.lstrip().startswith("<")), "")
    seen = Seen(source="nvidia-smi", text=said[:200])
    mismatch = re.search(r"driver/library version mismatch", text, re.IGNORECASE)
    if mismatch:
        library = re.search(r"NVML library version: ([\d.]+)", text)
        values = {"module": version or "?", "library": library[1] if library else "another"}
        evidence = (seen, Seen(source="/proc/driver/nvidia/version", text=line)) if line else (seen,)
        yield Hit(id="driver-library-mismatch", evidence=evidence, values=values)
    elif reading is not None and reading.status == "timeout":
        yield Hit(id="nvidia-smi-hangs", evidence=(Seen(source="nvidia-smi -q -x", text="no answer in 10 s"),))
    elif re.search(r"No devices were found", text):
        yield Hit(id="driver-sees-no-gpu", evidence=(seen,))
    elif re.search(r"couldn't communicate with the NVIDIA driver", text) and version:
        yield Hit(id="nvml-cannot-talk", evidence=(seen, Seen(source="/proc/driver/nvidia/version", text=line)))
    elif version and reading is not None and reading.status == "absent" and not is_wsl(survey):
        yield Hit(id="nvidia-smi-absent", evidence=(Seen(source="/proc/driver/nvidia/version", text=line),))


def age(survey: Survey) -> Iterator[Hit]:
    """A driver that current engines do not run on, or that their newest wheels do not."""
    log = nvidia_log(survey)
    version = (log.driver if log else "") or module_version(survey)[0]
    branch = re.match(r"\d{1,6}\b", version)
    if branch is None:
        return
    seen = Seen(
        source="nvidia-smi", text=f"driver {version}" + (f", CUDA up to {log.cuda}" if log and log.cuda else "")
    )
    if int(branch[0]) < _OLDEST:
        yield Hit(id="driver-old", evidence=(seen,), values={"version": version})
    elif int(branch[0]) < _CUDA13:
        yield Hit(id="driver-before-cuda13", evidence=(seen,), values={"version": version})


def nodes(survey: Survey) -> Iterator[Hit]:
    """Device files that are missing, or that this user may not open; the module of unified memory."""
    if not module_version(survey)[0] or is_wsl(survey):
        return
    found = dict(line.split(": ", 1) for line in survey.text("nvidia-nodes").splitlines() if ": " in line)
    cards = [path for path in found if re.fullmatch(r"/dev/nvidia\d+", path)]
    if not found and survey.status("nvidia-nodes") != "ok":
        return
    inside = in_container(survey) is not None
    if not cards:
        yield Hit(
            id="gpu-not-in-container" if inside else "device-nodes-missing",
            evidence=(Seen(source="/dev", text="no /dev/nvidia0"),),
        )
    locked = [path for path in (*cards, "/dev/nvidiactl") if found.get(path, "usable") != "usable"]
    if locked:
        yield Hit(id="device-nodes-locked", evidence=(Seen(source=locked[0], text=found[locked[0]]),))
    if cards and "/dev/nvidia-uvm" not in found:
        loaded_ = "nvidia_uvm" in modules(survey)
        text = "no /dev/nvidia-uvm" + ("; module nvidia_uvm is loaded" if loaded_ else "; module nvidia_uvm not loaded")
        yield Hit(id="uvm-missing", evidence=(Seen(source="/dev", text=text),))


def wsl(survey: Survey) -> Iterator[Hit]:
    """In WSL2 the driver is Windows' own; a Linux driver inside breaks it."""
    if not is_wsl(survey):
        return
    known = env(survey)
    nodes_ = survey.text("nvidia-nodes")
    if "nvidia" in modules(survey) or "/usr/bin/nvidia-smi -> /usr/bin/nvidia-smi" in survey.text("programs"):
        line = next((x for x in survey.text("programs").splitlines() if x.startswith("nvidia-smi")), "nvidia module")
        yield Hit(id="wsl2-linux-driver", evidence=(Seen(source="PATH", text=line),))
    elif "/dev/dxg" not in nodes_:
        yield Hit(
            id="wsl2-no-gpu",
            evidence=(Seen(source="/dev/dxg", text=f"absent ({known.get('WSL_DISTRO_NAME', 'WSL')})"),),
        )


def hybrid(survey: Survey) -> Iterator[Hit]:
    """A laptop with two GPUs, whose NVIDIA one may be switched off."""
    cards = of_vendor(survey, "NVIDIA")
    others = (*of_vendor(survey, "Intel"), *of_vendor(survey, "AMD"))
    log = nvidia_log(survey)
    names = [gpu.name for gpu in log.gpus] if log else []
    if cards and others and any("Laptop" in name or "Mobile" in name or "Max-Q" in name for name in names):
        yield Hit(id="hybrid-graphics", evidence=(shown(cards[0]), shown(others[0])))


def _secure_boot(survey: Survey) -> bool:
    return "secureboot enabled" in survey.text("mokutil").lower()


def _built(survey: Survey) -> bool:
    return bool(re.search(r"nvidia.*installed", survey.text("dkms")))


CHECKS = (loaded, answers, age, nodes, wsl, hybrid)
