"""The GPU entries are sound: units, names, sources, and numbers that can be true."""

import itertools
import re
import time

import pytest

from model_optimizer.kb.gpus import gpus
from model_optimizer.records.hardware import PcieLink
from model_optimizer.records.knowledge import Sourced

GIB = 2**30


def _sourced(spec):
    """Every sourced value of an entry, by field."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Sourced):
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", item) for key, item in value.items() if isinstance(item, Sourced))


def test_there_are_sixty_one():
    assert len(gpus()) == 61
    assert {spec.vendor for spec in gpus()} == {"nvidia", "amd", "intel"}


def test_ids_and_driver_names_are_unique():
    for names in ([spec.id for spec in gpus()], [name for spec in gpus() for name in spec.names]):
        assert len(names) == len({name.lower() for name in names})


def test_pci_ids_belong_to_one_board():
    ids = [pci for spec in gpus() for pci in spec.pci_ids]
    assert len(ids) == len(set(ids)) > 50
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", pci) for pci in ids)


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.id)
def test_every_value_is_sourced(spec):
    known = {source.id for source in spec.sources}
    values = list(_sourced(spec))
    assert len(values) >= 5
    for name, value in values:
        assert value.sources and set(value.sources) <= known, name
    for source in spec.sources:
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", source.read) and source.title


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.id)
def test_numbers_are_plausible(spec):
    memory = spec.memory_bytes.value
    assert 8 * GIB <= memory <= 300 * GIB and memory % GIB == 0
    assert all(memory % GIB == 0 for memory in spec.memory_variants_bytes)
    if spec.reported_memory_bytes is not None:
        # Drivers show less than the label, 12 % at most (ECC in GDDR6 takes 1/16); never more than a variant.
        largest = max((memory, *spec.memory_variants_bytes))
        assert 0.88 * memory <= spec.reported_memory_bytes.value <= largest * 1.02
    assert 60e9 <= spec.memory_bandwidth_bytes_s.value <= 9e12
    assert spec.multiprocessors is None or 5 <= spec.multiprocessors.value <= 400
    assert spec.boost_clock_hz is None or 0.5e9 <= spec.boost_clock_hz.value <= 3.2e9
    assert spec.l2_bytes is None or 2 * 2**20 <= spec.l2_bytes.value <= 200 * 2**20
    assert spec.tdp_w is None or 10 <= spec.tdp_w.value <= 1500
    if spec.tdp_range_w is not None and spec.tdp_w is not None:
        assert spec.tdp_range_w[0] <= spec.tdp_w.value <= spec.tdp_range_w[1]


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.id)
def test_peaks_are_in_order(spec):
    peak = {dtype: value.value for dtype, value in spec.dense_flops.items()}
    assert all(1e12 <= value <= 2e16 for value in peak.values())
    assert set(peak) <= {"fp32", "fp16", "bf16", "fp8", "int8", "fp4"}
    for slower, faster in itertools.pairwise([dtype for dtype in ("fp16", "fp8", "fp4") if dtype in peak]):
        assert 1.5 * peak[slower] <= peak[faster] <= 4.1 * peak[slower]
    if "bf16" in peak and "fp16" in peak:
        assert peak["bf16"] == peak["fp16"]
    for dtype, fast in spec.fp16_accumulate_flops.items():
        assert fast.value == pytest.approx(2 * peak[dtype], rel=0.01)


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.id)
def test_features_agree_with_peaks_and_capability(spec):
    for dtype in ("fp8", "fp4"):
        if dtype in spec.dense_flops:
            assert spec.features[dtype]
    if "bf16" in spec.dense_flops:
        assert spec.features["bf16"]
    if spec.compute_capability is not None:
        capability = tuple(int(part) for part in spec.compute_capability.value.split("."))
        assert spec.features["bf16"] is (capability >= (8, 0))
        assert spec.features["fp8"] is (capability >= (8, 9))
        assert spec.features["fp4"] is (capability >= (10, 0))
        assert spec.platform == "cuda" and spec.label == f"sm {spec.compute_capability.value}"
    else:
        assert spec.platform in ("rocm", "xpu")
    assert (spec.gfx is None) is (spec.vendor != "amd")


def test_bandwidth_follows_from_bus_and_type():
    """GDDR rates lie between 5 and 32 Gbit/s a pin, HBM2 to HBM3e between 1.4 and 10: a slipped digit falls outside."""
    for spec in gpus():
        if spec.memory_bus_bits is None:
            continue
        per_pin = spec.memory_bandwidth_bytes_s.value * 8 / spec.memory_bus_bits / 1e9
        low, high = (1.4, 10) if spec.memory_type.startswith(("HBM", "LPDDR")) else (8, 32)
        assert low <= per_pin <= high, (spec.id, per_pin)


def test_derived_values_are_no_better_than_their_weakest_source():
    for spec in gpus():
        order = {source.id: ("vendor", "measured", "community").index(source.status) for source in spec.sources}
        for name, value in _sourced(spec):
            ranks = [order[source] for source in value.sources]
            best = max(ranks) if value.basis == "derived" else min(ranks)
            assert ("vendor", "measured", "community")[best] == value.status, (spec.id, name)


def test_memory_may_refuse_for_all_but_four_boards():
    weak = {spec.id for spec in gpus() if not spec.memory_bytes.may_refuse}
    assert weak == {"jetson-orin-nano-8gb", "dgx-spark-gb10", "p100-sxm2", "arc-b580"}


def test_usable_memory_is_what_a_driver_showed():
    spec = next(spec for spec in gpus() if spec.id == "b300")
    assert spec.memory_bytes.value == 288 * GIB
    assert spec.usable_memory_bytes == 275040 * 2**20


@pytest.mark.parametrize(("link", "gigabytes"), [((3, 16), 15.8), ((4, 8), 15.8), ((4, 16), 31.5), ((5, 16), 63.0)])
def test_pcie_bandwidth(link, gigabytes):
    assert PcieLink(generation=link[0], lanes=link[1]).bytes_s / 1e9 == pytest.approx(gigabytes, abs=0.1)


def test_records_survive_json():
    for spec in gpus():
        assert type(spec).from_json(spec.to_json()) == spec


def test_loading_is_fast():
    """61 entries in under 100 ms of processor time; the best of five, because the machine may be busy."""
    best = float("inf")
    for _ in range(5):
        gpus.cache_clear()
        begin = time.process_time()
        gpus()
        best = min(best, time.process_time() - begin)
    assert best < 0.100
