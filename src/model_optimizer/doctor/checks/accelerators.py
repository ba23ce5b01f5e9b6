"""AMD GPUs and NVIDIA Jetson: the basics."""

from __future__ import annotations

import re
from collections.abc import Iterator

from model_optimizer.doctor.read.gpu import modules, of_vendor, shown
from model_optimizer.doctor.read.places import in_container, is_wsl
from model_optimizer.records.doctor import Hit, Seen, Survey

_ENGINE_GFX = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1200", "gfx1201")
"""What vLLM's ROCm wheels are built for (kb: engines/vllm.yaml)."""


def amd(survey: Survey) -> Iterator[Hit]:
    """amdgpu loaded, the compute device there and open to this user, an architecture that engines are built for."""
    cards = of_vendor(survey, "AMD")
    compute = re.findall(r"gfx_target_version (\d{1,9})\b", survey.text("kfd"))
    real = [_gfx(number) for number in compute if int(number) > 0]
    if not cards or is_wsl(survey):
        return
    discrete = [card for card in cards if card.kind in ("0380", "1200", "0302")]
    if not discrete and not real:
        return  # a display adapter of a server or a processor's graphics: not meant for computing
    card = shown((discrete or list(cards))[0])
    found = dict(line.split(": ", 1) for line in survey.text("nvidia-nodes").splitlines() if ": " in line)
    if "amdgpu" not in modules(survey) and in_container(survey) is None:
        yield Hit(id="amd-driver-missing", evidence=(card, Seen(source="/proc/modules", text="no amdgpu")))
    elif "/dev/kfd" not in found:
        yield Hit(id="amd-no-kfd", evidence=(card, Seen(source="/dev/kfd", text="absent")))
    elif found["/dev/kfd"] != "usable":
        yield Hit(id="amd-render-group", evidence=(Seen(source="/dev/kfd", text=found["/dev/kfd"]),))
    if survey.status("rocm-version") == "absent" and in_container(survey) is None:
        yield Hit(id="rocm-absent", evidence=(Seen(source="/opt/rocm/.info/version", text="absent"),))
    foreign = [name for name in real if name not in _ENGINE_GFX]
    if real and len(foreign) == len(real):
        yield Hit(
            id="amd-gfx-unsupported",
            evidence=(Seen(source="/sys/class/kfd", text=", ".join(sorted(set(foreign)))),),
            values={"gfx": foreign[0], "known": ", ".join(_ENGINE_GFX)},
        )


def jetson(survey: Survey) -> Iterator[Hit]:
    """A Jetson: memory shared with the processor, power modes, wheels of its own."""
    release = survey.text("tegra").strip().splitlines()
    if not release:
        return
    seen = Seen(source="/etc/nv_tegra_release", text=release[0][:120])
    yield Hit(id="jetson", evidence=(seen,), values={"release": release[0].lstrip("# ")[:40]})
    mode = re.search(r"NV Power Mode:\s*(\S+)", survey.text("nvpmodel"))
    if mode and "MAXN" not in mode[1]:
        yield Hit(
            id="jetson-power-mode",
            evidence=(Seen(source="nvpmodel -q", text=mode[0]),),
            values={"mode": mode[1]},
        )


def _gfx(number: str) -> str:
    """``90402`` → ``gfx942``: major, minor and stepping, the last in hexadecimal."""
    value = int(number)
    return f"gfx{value // 10000}{value // 100 % 100:x}{value % 100:x}"


CHECKS = (amd, jetson)
