"""Drivers, CUDA and capabilities, against NVIDIA's published pairs."""

import pytest

from model_optimizer.kb.compat import (
    compat,
    cuda_knows,
    driver_runs,
    dropped_in,
    min_driver,
    newest_cuda,
    paired_driver,
)
from model_optimizer.kb.gpus import gpus
from model_optimizer.kb.versions import version_key


@pytest.mark.parametrize(
    ("cuda", "os", "driver"),
    [("11.8", "linux", "520.61.05"), ("12.4", "linux", "550.54.14"), ("12.2u2", "windows", "537.13"),
     ("13.0", "linux", "580.65.06"), ("13.0", "windows", None), ("9.9", "linux", None)],
)  # fmt: skip
def test_paired_driver(cuda, os, driver):
    assert paired_driver(cuda, os) == driver


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"),
    [
        ("525.60.13", "12.9", True),  # minor-version compatibility
        ("520.61.05", "12.0", False),
        ("580.65.06", "13.2", True),
        ("575.57.08", "13.0", False),
        ("610.43.02", "11.8", True),  # newer drivers run older CUDA
        ("610.43.02", "99.0", None),
    ],
)
def test_driver_runs(driver, cuda, runs):
    assert driver_runs(driver, cuda) is runs


def test_newest_cuda_of_a_driver():
    assert newest_cuda("535.129.03") == "12.2u2"
    assert newest_cuda("450.80.02") is None


@pytest.mark.parametrize(
    ("cuda", "capability", "known"),
    [("11.8", "8.9", True), ("11.7", "8.9", False), ("12.8", "12.0", True), ("12.6", "12.0", False),
     ("12.9", "6.1", True), ("13.0", "6.1", False), ("13.0", "7.0", False), ("13.0", "7.5", True),
     ("12.8", "10.3", False), ("12.9", "10.3", True), ("13.0", "1.3", None)],
)  # fmt: skip
def test_cuda_knows_capability(cuda, capability, known):
    assert cuda_knows(cuda, capability) is known


def test_dropped_architectures_agree_with_the_gpus():
    for spec in gpus():
        if spec.compute_capability is None:
            continue
        gone = dropped_in(spec.compute_capability.value)
        assert (gone is not None) is (spec.max_cuda is not None), spec.id
        if spec.min_cuda is not None:
            assert cuda_knows(spec.min_cuda.value, spec.compute_capability.value)
        if spec.max_driver_branch is not None:
            capability = spec.compute_capability.value
            branches = compat().last_driver_branch
            assert spec.max_driver_branch.value == branches.get(capability, branches.get(capability.split(".")[0]))


def test_the_table_is_in_order():
    keys = [version_key(row.cuda) for row in compat().toolkits]
    assert keys == sorted(keys)
    drivers = [version_key(row.linux) for row in compat().toolkits if row.linux]
    assert drivers == sorted(drivers)
    assert min_driver("12.4") == "525.60.13"
    assert compat().sources
