"""Several GPUs in one machine: how they reach each other, and what stands in the way."""

from __future__ import annotations

import re
from collections.abc import Iterator

from model_optimizer.doctor.read.gpu import nvidia_log
from model_optimizer.doctor.read.places import env, in_container
from model_optimizer.doctor.read.system import lines_of
from model_optimizer.records.doctor import Hit, Seen, Survey

_SLOW = {"SYS": "across processor sockets", "NODE": "across PCIe host bridges", "PHB": "through the processor"}


def fabric(survey: Survey) -> Iterator[Hit]:
    """NVSwitch machines: CUDA does not start before the fabric manager has connected the GPUs."""
    log = nvidia_log(survey)
    if log is None:
        return
    waiting = [gpu for gpu in log.gpus if gpu.fabric in ("In Progress", "Not Started")]
    state = survey.text("fabric-manager").strip()
    if waiting:
        evidence = [Seen(source="nvidia-smi -q", text=f"{waiting[0].name}: Fabric State: {waiting[0].fabric}")]
        if state:
            evidence.append(Seen(source="systemctl is-active nvidia-fabricmanager", text=state))
        yield Hit(id="fabric-not-ready", evidence=tuple(evidence))


def paths(survey: Survey) -> Iterator[Hit]:
    """No NVLink between the GPUs: tensor parallelism talks over PCIe."""
    log, table = nvidia_log(survey), survey.text("nvidia-topo")
    if log is None or len(log.gpus) < 2 or not table:
        return
    rows = [line.split() for line in table.splitlines() if re.match(r"GPU\d+\s", line)]
    cells = {cell for row in rows for cell in row[1 : 1 + len(rows)] if cell != "X"}
    if not rows or any(cell.startswith("NV") for cell in cells):
        return
    worst = next((name for name in _SLOW if name in cells), "")
    if worst:
        yield Hit(
            id="no-nvlink",
            evidence=(Seen(source="nvidia-smi topo -m", text=" ".join(rows[0][: 1 + len(rows)])),),
            values={"number": len(rows), "way": _SLOW[worst]},
        )


def nccl(survey: Survey) -> Iterator[Hit]:
    """Settings that take NCCL's fast ways, and an IOMMU that breaks direct copies between GPUs."""
    log, known = nvidia_log(survey), env(survey)
    if log is None or len(log.gpus) < 2:
        return
    for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"):
        if known.get(name) == "1":
            seen = Seen(source="environment", text=f"{name}=1")
            yield Hit(id="nccl-way-disabled", evidence=(seen,), values={"name": name})
    units = lines_of(survey.text("iommu"))
    translated = re.search(r"\biommu=pt\b|iommu=off", survey.text("cmdline")) is None
    if units and translated and in_container(survey) is None and "hypervisor" not in survey.text("cpuinfo"):
        yield Hit(
            id="iommu-between-gpus",
            evidence=(
                Seen(source=units[0][0], text=units[0][1] or "present"),
                Seen(source="/proc/cmdline", text="no iommu=pt"),
            ),
        )


CHECKS = (fabric, paths, nccl)
