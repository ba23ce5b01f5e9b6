"""Recorded hosts: a healthy machine's readings, changed by what each file in ``hosts`` says.

The forms are those of the documented outputs (proc(5), sysfs, ``nvidia-smi -q -x``, ``docker info``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from model_optimizer.records.doctor import Reading, Survey

HOSTS = Path(__file__).parent / "hosts"
_FLAGS = "fpu sse sse2 ssse3 sse4_1 sse4_2 avx f16c fma avx2 avx512f avx512bw avx512_vnni avx512_bf16"
_GIB = 1 << 30

GPU = {
    "at": "00000000:01:00.0", "name": "NVIDIA L40S", "total": 46068, "used": 4, "free": 45462, "persistence": "Enabled",
    "mode": "Default", "mig": "N/A", "mig_devices": 0, "ecc": "Enabled", "uncorrectable": 0, "rows_pending": "No",
    "rows_failed": "No", "limit": "350.00 W", "default": "350.00 W", "max": "350.00 W", "slowdown": "Not Active",
    "hot": "Not Active", "temperature": "38 C", "gen": 4, "gen_max": 4, "width": "16x", "width_max": "16x",
    "state": "P8", "fabric": "N/A", "processes": [],
}  # fmt: skip

BASE: dict[str, str] = {
    "meminfo": "MemTotal: 65536000 kB\nMemFree: 30000000 kB\nMemAvailable: 60000000 kB\nSwapTotal: 8388608 kB\n"
    "SwapFree: 8388608 kB\nCommitLimit: 41156608 kB\nCommitted_AS: 3000000 kB\n",
    "cpuinfo": "".join(
        f"processor\t: {n}\nmodel name\t: INTEL(R) XEON(R) GOLD 6530\nflags\t\t: {_FLAGS}\n\n" for n in range(16)
    ),
    "stat": "cpu  900000 100 90000 9000000 1000 0 500 0 0 0\n",
    "loadavg": "0.20 0.31 0.25 1/612 9143\n",
    "vmstat": "nr_free_pages 7500000\noom_kill 0\n",
    "limits": "Limit                     Soft Limit           Hard Limit           Units\n"
    "Max open files            65536                1048576              files\n"
    "Max locked memory         unlimited            unlimited            bytes\n",
    "kernel": "Linux version 6.8.0-48-generic (builder@host) (gcc 13.2.0) #48-Ubuntu SMP\n",
    "os-release": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n',
    "numa": "/sys/devices/system/node/has_cpu: 0\n/sys/devices/system/node/node0/cpulist: 0-15",
    "huge-pages": "always [madvise] never\n",
    "overcommit": "/proc/sys/vm/overcommit_memory: 0",
    "modules": "nvme 61440 3 - Live 0x0\next4 983040 1 - Live 0x0\n",
    "cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p2 ro quiet\n",
    "governors": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor: performance\n"
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver: intel_pstate",
    "environment": "HOME=/home/ada\nLANG=en_US.UTF-8\nSHELL=/bin/bash",
    "hub": "cache: /home/ada/.cache/huggingface/hub\ncache-exists: yes\ntoken: file\n"
    "token-file: /home/ada/.cache/huggingface/token\ntoken-file-mode: 600",
    "python": "system: Linux\nmachine: x86_64\nimplementation: CPython\nversion: 3.12.3\n"
    "executable: /usr/bin/python3\nlibc: glibc 2.39\nfilesystem-encoding: utf-8\npreferred-encoding: UTF-8\nuser: 1000",
    "programs": "docker: /usr/bin/docker -> /usr/bin/docker\ngcc: /usr/bin/gcc -> /usr/bin/gcc-13",
    "container-marks": "namespaces: the machine's own\n/proc/1/cgroup: 0::/init.scope\n/proc/1/comm: systemd",
    "cgroup-limits": "/sys/fs/cgroup/user.slice/memory.max: max\n/sys/fs/cgroup/user.slice/cpu.max: max 100000",
    "clock": "now: 1796116219\nnewest-file: 1796100000 /etc/ld.so.cache",
    "kernel-headers": "release: 6.8.0-48-generic\nheaders: there",
    "docker-info": json.dumps({"ServerVersion": "27.3.1", "CgroupDriver": "systemd", "Runtimes": {"runc": {}}}),
    "timedatectl": "NTP=yes\nNTPSynchronized=yes",
    "pci-display": "/sys/bus/pci/devices/0000:00:02.0/class: 0x030000\n"
    "/sys/bus/pci/devices/0000:00:02.0/vendor: 0x1a03\n/sys/bus/pci/devices/0000:00:02.0/device: 0x2000",
}

_NVIDIA = {
    "modules": BASE["modules"] + "nvidia_uvm 4956160 0 - Live 0x0\nnvidia 54587392 2 nvidia_uvm, Live 0x0\n",
    "programs": BASE["programs"]
    + "\nnvidia-smi: /usr/bin/nvidia-smi -> /usr/bin/nvidia-smi"
    + "\nnvidia-ctk: /usr/bin/nvidia-ctk -> /usr/bin/nvidia-ctk",
    "nvidia-version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n",
    "nvidia-nodes": "/dev/nvidia-uvm: usable\n/dev/nvidia0: usable\n/dev/nvidiactl: usable",
    "nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.18.1\n",
    "cdi": "/var/run/cdi/nvidia.yaml: ---",
    "docker-info": json.dumps(
        {"ServerVersion": "27.3.1", "CgroupDriver": "systemd", "Runtimes": {"runc": {}, "nvidia": {}}}
    ),
}


def host(name: str) -> tuple[Survey, dict[str, Any]]:
    """The recorded host and its file's other fields (``expect``)."""
    told: dict[str, Any] = yaml.safe_load((HOSTS / f"{name}.yaml").read_text())
    return survey_of(told), told


def survey_of(told: dict[str, Any]) -> Survey:
    """The healthy machine, with ``gpus`` (changes to the healthy one, each), ``places`` and ``readings`` replaced."""
    readings = dict(BASE)
    gpus = told.get("gpus")
    if gpus is not None:
        driver = told.get("driver", "580.95.05")
        readings |= {key: value.replace("{driver}", driver) for key, value in _NVIDIA.items()}
        readings["pci-display"] += "".join(_pci(n, "0x10de", "0x26b9", "0x030200") for n in range(1, len(gpus) + 1))
        readings["nvidia-smi-xml"] = smi_xml([{**GPU, **(gpu or {})} for gpu in gpus], driver, told.get("cuda", "13.0"))
    for n, card in enumerate(told.get("pci", []), start=16):
        readings["pci-display"] += _pci(n, *card.split())
    readings["places"] = "\n".join(
        json.dumps(_place(role, told.get("places", {}).get(role, {}))) for role in ("home", "hub-cache", "tmp", "shm")
    )
    for key, value in told.get("environment", {}).items():
        readings["environment"] += f"\n{key}={value}"
    taken = {key: Reading(source=key, text=text) for key, text in readings.items()}
    for key, value in told.get("readings", {}).items():
        taken[key] = Reading(source=key, **value) if isinstance(value, dict) else Reading(source=key, text=value)
    return Survey(taken_at="2026-12-01T08:00:00+00:00", readings=taken)


def _pci(number: int, vendor: str, device: str, kind: str) -> str:
    folder = f"/sys/bus/pci/devices/0000:{number:02x}:00.0"
    return f"\n{folder}/class: {kind}\n{folder}/vendor: {vendor}\n{folder}/device: {device}"


def _place(role: str, changed: dict[str, Any]) -> dict[str, Any]:
    shm = role == "shm"
    path = {"home": "/home/ada/.model-optimizer", "hub-cache": "/home/ada/.cache/huggingface/hub", "tmp": "/tmp"}
    usual = {
        "role": role, "path": path.get(role, "/dev/shm"), "mount": "/dev/shm" if shm else "/",
        "kind": "tmpfs" if shm else "ext4", "device": "tmpfs" if shm else "/dev/nvme0n1p2",
        "total": 32 * _GIB if shm else 2000 * _GIB, "available": 32 * _GIB if shm else 900 * _GIB,
        "inodes": 120_000_000, "inodes_free": 110_000_000, "rotational": None if shm else False, "writable": True,
    }  # fmt: skip
    return usual | changed


def smi_xml(gpus: list[dict[str, Any]], driver: str, cuda: str) -> str:
    """``nvidia-smi -q -x`` with the nodes that matter."""
    body = "".join(_gpu_xml(gpu) for gpu in gpus)
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"<driver_version>{driver}</driver_version><cuda_version>{cuda}</cuda_version>"
        f"<attached_gpus>{len(gpus)}</attached_gpus>\n{body}</nvidia_smi_log>\n"
    )


def _gpu_xml(gpu: dict[str, Any]) -> str:
    processes = "".join(
        f"<process_info><pid>{p['pid']}</pid><type>C</type><process_name>{p['name']}</process_name>"
        f"<used_memory>{p['mib']} MiB</used_memory></process_info>"
        for p in gpu["processes"]
    )
    instances = "<mig_device><index>0</index></mig_device>" * gpu["mig_devices"]
    return f"""<gpu id="{gpu["at"]}"><product_name>{gpu["name"]}</product_name>
<persistence_mode>{gpu["persistence"]}</persistence_mode>
<mig_mode><current_mig>{gpu["mig"]}</current_mig><pending_mig>{gpu["mig"]}</pending_mig></mig_mode>
<mig_devices>{instances or "None"}</mig_devices>
<fabric><state>{gpu["fabric"]}</state><status>N/A</status></fabric>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>{gpu["gen_max"]}</max_link_gen>
<current_link_gen>{gpu["gen"]}</current_link_gen></pcie_gen><link_widths>
<max_link_width>{gpu["width_max"]}</max_link_width><current_link_width>{gpu["width"]}</current_link_width>
</link_widths></pci_gpu_link_info></pci><performance_state>{gpu["state"]}</performance_state>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_hw_slowdown>{gpu["slowdown"]}</clocks_event_reason_hw_slowdown>
<clocks_event_reason_sw_thermal_slowdown>{gpu["hot"]}</clocks_event_reason_sw_thermal_slowdown></clocks_event_reasons>
<fb_memory_usage><total>{gpu["total"]} MiB</total><reserved>602 MiB</reserved><used>{gpu["used"]} MiB</used>
<free>{gpu["free"]} MiB</free></fb_memory_usage><compute_mode>{gpu["mode"]}</compute_mode>
<ecc_mode><current_ecc>{gpu["ecc"]}</current_ecc></ecc_mode><ecc_errors><volatile>
<sram_correctable>0</sram_correctable><dram_correctable>2</dram_correctable>
<dram_uncorrectable>{gpu["uncorrectable"]}</dram_uncorrectable></volatile>
<aggregate><dram_uncorrectable>9</dram_uncorrectable></aggregate></ecc_errors>
<remapped_rows><remapped_row_pending>{gpu["rows_pending"]}</remapped_row_pending>
<remapped_row_failure>{gpu["rows_failed"]}</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>{gpu["temperature"]}</gpu_temp></temperature>
<gpu_power_readings><power_draw>40.11 W</power_draw><current_power_limit>{gpu["limit"]}</current_power_limit>
<default_power_limit>{gpu["default"]}</default_power_limit><max_power_limit>{gpu["max"]}</max_power_limit>
</gpu_power_readings><processes>{processes}</processes></gpu>
"""
