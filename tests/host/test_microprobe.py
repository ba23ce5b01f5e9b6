"""The micro-probe: real rates of this machine, and what rates of other machines mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from model_optimizer.host.microprobe import cpu_matrix, cpu_memory, disk_read, measure
from model_optimizer.host.microprobe_class import against_class
from model_optimizer.host.probe import probe_host
from model_optimizer.host.toolenv import Toolbox
from model_optimizer.records.doctor import ProbedValue
from model_optimizer.records.hardware import DetectedGpu


def entry(kind: str, median: float, **more: Any) -> dict[str, Any]:
    unit = "FLOP/s" if kind == "matrix" else "B/s"
    return {
        "name": kind, "unit": unit, "median": median, "low": median * 0.98, "high": median * 1.02, "repeats": 9,
        "how": "torch", "kind": kind, **more,
    }  # fmt: skip


def one(name: str, measured: dict[str, Any], **device: Any) -> ProbedValue:
    result = {"device": {"kind": "cuda", "name": name, **device}, "values": [measured]}
    (value,) = against_class(result)
    return value


def bf16(tera: float, rows: int = 8192) -> dict[str, Any]:
    return entry("matrix", tera * 1e12, dtype="bf16", shape=[rows, 8192, 8192])


def test_a_full_card_is_as_usual():
    value = one("NVIDIA H200", bf16(720), under_load={"power.limit": "700.00", "power.default_limit": "700.00"})
    assert value.expected == pytest.approx(989.4e12, rel=0.01)
    assert value.share == pytest.approx(0.728, abs=0.01)
    assert value.note == "73% of its class, as usual"
    assert "half of them within ±2%" in value.how


def test_a_laptop_with_a_power_limit_says_so():
    read = {"power.limit": "35.00", "power.default_limit": "80.00", "clocks.sm": "900", "clocks.max.sm": "3105",
            "reasons": "0x0000000000000004"}  # fmt: skip
    value = one("NVIDIA GeForce RTX 4060 Laptop GPU", bf16(9), under_load=read)
    assert value.share is not None and value.share < 0.6
    assert "power limit 35 W of" in value.note
    assert "900 of 3105 MHz under load" in value.note
    assert f"{value.share:.0%} of its class" in value.note


def test_heat_is_told_with_the_temperature():
    read = {"reasons": "0x0000000000000060", "temperature.gpu": "94"}
    note = one("NVIDIA H200", bf16(300), under_load=read).note
    assert "thermal limit at 94 °C" in note
    assert note.count("thermal limit") == 1


def test_fewer_multiprocessors_point_at_a_slice():
    note = one("NVIDIA H200", bf16(100), multiprocessors=16, under_load={}).note
    assert "16 of 132 multiprocessors" in note


def test_an_unexplained_shortfall_is_not_explained():
    note = one("NVIDIA H200", entry("bandwidth", 2.4e12), multiprocessors=132, under_load={"power.limit": "[N/A]"}).note
    assert "50% of its class" in note
    assert "nothing in its clocks and limits says why" in note


def test_a_few_rows_are_held_against_the_memory_not_the_matrix_units():
    value = one("NVIDIA H200", bf16(60, rows=16), under_load={})
    assert value.expected is not None and value.expected < 80e12  # 16 rows read 128 MiB of weights for 2 GFLOP
    assert value.note == ""


@pytest.mark.parametrize(
    ("current", "most", "note"),
    [(("3", "8"), ("4", "16"), "PCIe 3.0 x8 of 4.0 x16"), (("4", "16"), ("4", "16"), "nothing in its clocks")],
)
def test_a_slow_link_is_compared_with_what_the_slot_gives(current, most, note):
    read = {"pcie.link.gen.current": current[0], "pcie.link.width.current": current[1],
            "pcie.link.gen.max": most[0], "pcie.link.width.max": most[1]}  # fmt: skip
    value = one("NVIDIA L20", entry("transfer", 3e9, pinned=True), under_load=read)
    assert value.expected == pytest.approx(7.88e9 if current[0] == "3" else 31.5e9, rel=0.01)
    assert note in value.note


def test_pageable_copies_have_no_expectation():
    assert one("NVIDIA L20", entry("transfer", 3e9, pinned=False), under_load={}).expected is None


@pytest.mark.parametrize("device", [{"kind": "cuda", "name": "Some GPU 9000"}, {"kind": "cpu"}, {}])
def test_an_unknown_device_gives_its_rates_alone(device):
    (value,) = against_class({"device": device, "values": [bf16(1)]})
    assert value.measured == 1e12
    assert (value.expected, value.share, value.note) == (None, None, "")


def test_memory_of_one_core_and_of_all():
    found = cpu_memory(2, 0.2)
    assert [value.name for value in found] == ["memory, one core", "memory, all cores"]
    assert all(1e8 < value.measured < 1e13 for value in found)
    assert [value.name for value in cpu_memory(1, 0.1)] == ["memory, one core"]


def test_numpy_multiplies_where_torch_is_not():
    assert 1e8 < cpu_matrix(0.1).measured < 1e14


def test_reading_the_disk_leaves_nothing(tmp_path: Path):
    value = disk_read(tmp_path / "models" / "not yet there", 0.2)
    assert isinstance(value, ProbedValue), value
    assert value.measured > 1e6
    assert str(tmp_path) in value.how
    assert list(tmp_path.rglob("*")) == []


def test_a_full_disk_and_a_folder_that_cannot_be_written_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr("shutil.disk_usage", lambda place: Usage(100 << 20))
    assert "free" in str(disk_read(tmp_path, 0.1))
    monkeypatch.undo()
    assert isinstance(disk_read(Path("/proc"), 0.1), str)


def test_without_torch_numpy_speaks_and_a_gpu_is_left_out_loudly(tmp_path: Path):
    notes: list[str] = []

    def emit(kind: str, **fields: object) -> None:
        if kind == "note":
            notes.append(str(fields["text"]))

    host = probe_host(tmp_path).model_copy(update={"gpus": (), "cpu_cores": 1})
    box = Toolbox(tmp_path / "tools", overrides={}, emit=emit, platform="cpu")
    places = {"folder": tmp_path, "scratch": tmp_path / "scratch", "log": tmp_path / "log"}
    found = measure(box, host, **places, emit=emit, seconds=0.5)
    assert [value.name.split(",")[0] for value in found] == ["memory", "disk", "matrix fp32"]
    assert any("numpy in float32 only" in note and "tools install" in note for note in notes)
    gpu = DetectedGpu(index=0, name="NVIDIA L4", memory_bytes=24 << 30)
    with_gpu = measure(box, host.model_copy(update={"gpus": (gpu,)}), **places, emit=emit, seconds=0.5)
    assert all(not value.name.startswith("matrix") for value in with_gpu)
    assert any("the GPU was not measured" in note for note in notes)


@pytest.mark.slow
def test_the_worker_measures_this_machine(tmp_path: Path):
    kept = os.environ.get("MODEL_OPTIMIZER_TEST_TOOLS")
    box = Toolbox(Path(kept) if kept else tmp_path / "tools", overrides={}, emit=lambda kind, **fields: None)
    if not box.installed()["transformers"]:
        pytest.skip("the transformers environment is not built")
    places = {"folder": tmp_path, "scratch": tmp_path / "scratch", "log": tmp_path / "log"}
    found = measure(box, probe_host(tmp_path), **places, emit=lambda kind, **fields: None, seconds=6)
    rates = [value for value in found if value.name.startswith("matrix fp32")]
    assert len(rates) == 3
    assert all(value.measured > 1e8 for value in rates)
    assert list((tmp_path / "scratch").iterdir()) == []
