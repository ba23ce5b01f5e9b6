"""The machine as this process may use it, from recorded outputs and from the machine itself."""

import os
from pathlib import Path

import psutil
import pytest

from model_optimizer.host import probe
from model_optimizer.host.probe import cpu_cores, detect_gpus, free_disk_bytes, parse_gpus, probe_host

SKYLAKE = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R)  Xeon(R) Platinum 8480+
flags\t\t: fpu avx avx2 fma f16c avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8 sse4_2

processor\t: 1
model name\t: something else
"""
NEOVERSE = """\
processor\t: 0
Features\t: fp asimd evtstrm asimdhp asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""
FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "driver_version", "power.limit", "compute_cap")
H200 = "0, GPU-5a1b, NVIDIA H200, 143771, 143158, 570.86.15, 700.00, 9.0\n"
TWO = """\
0, GPU-aaaa, NVIDIA GeForce RTX 4090, 24564, 24210, 580.95, 450.00, 8.9
1, GPU-bbbb, NVIDIA L4, 23034, 22000, 580.95, 72.00, 8.9
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_this_machine(tmp_path):
    host = probe_host(tmp_path / "not" / "yet" / "there")
    assert 1 <= host.cpu_cores <= (os.cpu_count() or 1)
    assert host.cpu_name
    assert 0 < host.available_memory_bytes <= host.memory_bytes <= psutil.virtual_memory().total
    assert host.free_disk_bytes > 0
    assert host.python.startswith("3.")
    assert host.accelerator == ("cuda" if host.gpus else "cpu")
    assert probe_host(tmp_path).identity() == host.identity()


def test_an_intel_server(tmp_path):
    root = write(
        tmp_path, {"proc/cpuinfo": SKYLAKE, "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n'}
    )
    host = probe_host(tmp_path, root=root)
    assert host.cpu_name == "Intel(R) Xeon(R) Platinum 8480+"
    assert host.os == "Ubuntu 24.04.1 LTS"
    assert host.cpu_features == (
        "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16",
    )  # fmt: skip


def test_an_arm_server(tmp_path):
    host = probe_host(tmp_path, root=write(tmp_path, {"proc/cpuinfo": NEOVERSE}))
    assert host.cpu_name == "Arm implementer 0x41 part 0xd40"
    assert host.cpu_features == ("neon", "fp16", "dotprod", "i8mm", "bf16", "sve")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/x": "", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/17\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        ({"proc/self/cgroup": "3:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, 8),
    ],
)
def test_cores_are_those_that_we_may_use(files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert cpu_cores(write(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({}, 64, 48),
        ({"memory.max": "max\n"}, 64, 48),
        ({"memory.max": str(8 << 30), "memory.current": str(3 << 30)}, 8, 5),
        (
            {"memory.max": str(8 << 30), "memory.current": str(3 << 30), "memory.stat": f"inactive_file {1 << 30}\n"},
            8,
            6,
        ),
        ({"memory.limit_in_bytes": str(4 << 30), "memory.usage_in_bytes": str(5 << 30)}, 4, 0),
        ({"memory.limit_in_bytes": "9223372036854771712"}, 64, 48),
    ],
)
def test_memory_is_what_the_control_group_leaves(files, total, available, tmp_path, monkeypatch):
    class Memory:
        total = 64 << 30
        available = 48 << 30

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    root = write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    host = probe_host(tmp_path, root=root)
    assert (host.memory_bytes >> 30, host.available_memory_bytes >> 30) == (total, available)


def test_a_gpu_as_the_driver_tells_it():
    (gpu,) = parse_gpus(H200, FIELDS, {})
    assert gpu.name == "NVIDIA H200"
    assert gpu.memory_bytes == 143771 * 1024**2
    assert gpu.free_memory_bytes == 143158 * 1024**2
    assert (gpu.compute_capability, gpu.driver, gpu.power_limit_w) == ("9.0", "570.86.15", 700.0)


def test_what_the_driver_does_not_tell_is_unknown():
    (gpu,) = parse_gpus("0, GPU-1, NVIDIA T400, 2048, [N/A], 470.1, [Not Supported]\n", FIELDS[:-1], {})
    assert (gpu.free_memory_bytes, gpu.power_limit_w, gpu.compute_capability) == (None, None, None)


def test_no_gpu_without_a_memory_size():
    assert (
        parse_gpus("0, GPU-1, NVIDIA GB10, [N/A], [N/A], 580.95, [N/A], 12.1\nNo devices were found\n", FIELDS, {})
        == ()
    )


@pytest.mark.parametrize(
    ("visible", "names"),
    [("1", ["L4"]), ("1,0", ["L4", "4090"]), ("GPU-bb", ["L4"]), ("", []), ("-1", []), ("0,7,1", ["4090"])],
)
def test_hidden_gpus_are_not_ours(visible, names):
    gpus = parse_gpus(TWO, FIELDS, {"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.name.split()[-1] for gpu in gpus] == names


def smi(folder: Path, script: str, monkeypatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_an_old_driver_is_asked_again_without_the_field_it_does_not_know(tmp_path, monkeypatch):
    row = "0, GPU-1, Tesla V100, 16160, 16000, 460.32, 300.00"
    smi(
        tmp_path,
        f'case "$*" in *compute_cap*) echo "Field is not valid"; exit 2;; *) echo "{row}";; esac\n',
        monkeypatch,
    )
    (gpu,) = detect_gpus({})
    assert (gpu.name, gpu.compute_capability) == ("Tesla V100", None)


def test_a_broken_driver_means_no_gpu(tmp_path, monkeypatch):
    smi(tmp_path, 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18\n', monkeypatch)
    assert detect_gpus({}) == ()


def test_a_driver_that_hangs_means_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_NVIDIA_SMI_TIMEOUT_S", 0.3)
    smi(tmp_path, "sleep 600\n", monkeypatch)
    assert detect_gpus({}) == ()


def test_no_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_gpus({}) == ()


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path):
    assert free_disk_bytes(tmp_path / "a" / "b") > 0
