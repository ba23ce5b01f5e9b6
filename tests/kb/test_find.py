"""GPUs by what people type and drivers print."""

import pytest

from model_optimizer.errors import UnknownName
from model_optimizer.kb.find import gpu, matching_gpus
from model_optimizer.kb.gpus import gpus
from model_optimizer.kb.names import pci_id, words

SPELLINGS = {
    "rtx-2080-ti": ["2080ti", "RTX2080Ti", "NVIDIA GeForce RTX 2080 Ti", "rtx 2080 ti"],
    "rtx-3060": ["3060", "RTX 3060 12GB", "NVIDIA GeForce RTX 3060"],
    "rtx-3090": ["3090", "RTX-3090", "geforce rtx 3090"],
    "rtx-3090-ti": ["3090 Ti", "3090ti"],
    "rtx-4060": ["4060", "rtx4060", "GeForce RTX 4060 (desktop)", "4060 8gb", "10de:2882"],
    "rtx-4060-laptop": [
        "4060 laptop", "NVIDIA GeForce RTX 4060 Laptop GPU", "rtx 4060 mobile", "RTX4060 Laptop", "4060L", "4060laptop",
        "10de:28a0", "10DE:28E0", "0x28A010DE",
        "NVIDIA Corporation AD107M [GeForce RTX 4060 Max-Q / Mobile] (rev a1)",
    ],
    "rtx-4060-ti-16gb": ["4060 Ti", "4060ti", "RTX 4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti"],
    "rtx-4070": ["4070", "rtx 4070"],
    "rtx-4090": ["rtx4090", "4090", "RTX 4090", "rtx_4090", "4090 24gb", "10de:2684"],
    "rtx-5070": ["5070", "RTX5070"],
    "rtx-5070-laptop": ["5070 laptop", "rtx5070 mobile", "NVIDIA GeForce RTX 5070 Laptop GPU"],
    "rtx-5070-ti": ["5070ti", "RTX 5070 Ti"],
    "rtx-5090": ["5090", "geforce rtx 5090"],
    "gtx-1070": ["1070", "gtx1070", "GTX 1070"],
    "rtx-a6000": ["a6000", "NVIDIA RTX A6000"],
    "rtx-6000-ada": ["6000 ada", "RTX 6000 Ada Generation", "RTX6000Ada"],
    "rtx-pro-6000-blackwell": [
        "pro 6000", "RTX 6000 Pro", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx pro 6000 server",
    ],
    "t4": ["T4", "Tesla T4"],
    "v100-sxm2": ["v100 sxm2", "Tesla V100-SXM2-32GB"],
    "v100-pcie": ["V100-PCIE-16GB", "v100 pcie"],
    "p100-pcie": ["p100 pcie", "Tesla P100-PCIE-16GB"],
    "a10": ["A10", "NVIDIA A10"],
    "a10g": ["a10g", "g5"],
    "a100-pcie-40gb": ["a100 40gb pcie", "NVIDIA A100-PCIE-40GB"],
    "a100-sxm-80gb": ["a100 sxm 80gb", "NVIDIA A100-SXM4-80GB", "a100-80gb-sxm4"],
    "a100-pcie-80gb": ["NVIDIA A100 80GB PCIe", "A100 80G PCIe"],
    "l4": ["L4", "NVIDIA L4"],
    "l20": ["l20", "NVIDIA L20"],
    "l40": ["L40", "NVIDIA L40"],
    "l40s": ["l40s", "NVIDIA L40S"],
    "h20": ["H20", "NVIDIA H20"],
    "h100-pcie": ["h100 pcie", "NVIDIA H100 PCIe", "H100-PCIe", "h100pcie"],
    "h100-sxm": ["h100 sxm", "h100 sxm5", "NVIDIA H100 80GB HBM3"],
    "h100-nvl": ["h100 nvl", "h100nvl", "NVIDIA H100 NVL"],
    "h200-sxm": ["h200", "NVIDIA H200", "h200 sxm 141gb"],
    "h200-nvl": ["h200 nvl", "NVIDIA H200 NVL"],
    "gh200": ["gh200", "NVIDIA GH200 480GB"],
    "b200": ["b200", "HGX B200"],
    "b300": ["b300", "NVIDIA B300 SXM6 AC"],
    "gb200": ["gb200", "NVIDIA GB200"],
    "jetson-agx-orin-64gb": ["agx orin", "Jetson AGX Orin"],
    "jetson-orin-nano-8gb": ["orin nano", "jetson orin nano"],
    "dgx-spark-gb10": ["gb10", "DGX Spark", "NVIDIA GB10"],
    "mi300x": ["mi300x", "AMD Instinct MI300X", "AMD Instinct MI300X OAM"],
    "mi355x": ["MI355X", "gfx950"],
    "rx-7900-xtx": ["7900xtx", "RX 7900 XTX", "AMD Radeon RX 7900 XTX", "gfx1100"],
    "arc-b580": ["b580", "arc b580", "Intel(R) Arc(TM) B580 Graphics"],
    "arc-pro-b60": ["b60", "Intel Arc Pro B60"],
}  # fmt: skip

CASES = [(spelling, gpu_id) for gpu_id, spellings in SPELLINGS.items() for spelling in spellings]


def test_enough_spellings():
    assert len(CASES) >= 60


@pytest.mark.parametrize(("spelling", "gpu_id"), CASES)
def test_spelling(spelling, gpu_id):
    assert gpu(spelling).id == gpu_id


@pytest.mark.parametrize("spec", gpus(), ids=lambda spec: spec.id)
def test_every_name_finds_its_own_gpu(spec):
    for name in (spec.id, spec.title, *spec.names, *spec.aliases, *spec.pci_ids):
        assert gpu(name).id == spec.id, name


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("H100", {"h100-pcie", "h100-sxm", "h100-nvl"}),
        ("A100", {"a100-pcie-40gb", "a100-sxm-40gb", "a100-pcie-80gb", "a100-sxm-80gb"}),
        ("a100 80gb", {"a100-pcie-80gb", "a100-sxm-80gb"}),
        ("V100", {"v100-pcie", "v100-sxm2"}),
        ("P100", {"p100-pcie", "p100-sxm2"}),
        ("orin", {"jetson-agx-orin-64gb", "jetson-orin-nx-16gb", "jetson-orin-nano-8gb"}),
        ("gfx942", {"mi300x", "mi325x"}),
    ],
)
def test_a_name_of_several_boards_gives_the_choices(name, choices):
    assert {spec.id for spec in matching_gpus(name)} == choices
    with pytest.raises(UnknownName) as caught:
        gpu(name)
    assert set(caught.value.evidence) == choices
    assert all(choice in caught.value.fix for choice in choices)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("4090 D", "rtx-4090"),
        ("rtx 4090 d", "rtx-4090"),
        ("5070 Ti laptop", "rtx-5070-ti"),
        ("4060 ti 8gb", "rtx-4060-ti-16gb"),
        ("rtx 3080", "rtx-3060"),
        ("mi250", "mi250x"),
        ("RTX 6000", "rtx-6000-ada"),
        ("a100 pcie 80", "a100-pcie-80gb"),
    ],
)
def test_a_board_we_do_not_have_is_not_taken_for_its_neighbour(name, meant):
    with pytest.raises(UnknownName) as caught:
        gpu(name)
    assert meant in caught.value.fix and "did you mean" in caught.value.fix


@pytest.mark.parametrize("name", ["", "  ", "nvidia", "xyz", "gpu", "10de:ffff", "0x", "💥", "gfx9999", "a" * 5000])
def test_nonsense_is_an_error_with_a_list(name):
    with pytest.raises(UnknownName) as caught:
        gpu(name)
    assert caught.value.exit_code == 2 and "model-optimize gpus" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10DE:28A0", "10de:28a0"),
        ("0x28A010DE", "10de:28a0"),
        ("10de28a0", "10de:28a0"),
        ("4090", None),
        ("3090", None),
        ("12345678", None),
    ],
)
def test_pci_ids(text, expected):
    assert pci_id(text) == expected


def test_words_tell_boards_apart():
    assert words("NVIDIA A100-SXM4-80GB") == {"a100", "sxm", "80gb"}
    assert words("RTX 4060 Ti 16 GB") == words("4060ti 16g") == {"4060", "ti", "16gb"}
    assert words("GeForce RTX 4060 Laptop GPU") == {"4060", "laptop"}
