from __future__ import annotations

from collections import Counter

import pytest

from ullage.plan.catalogue import device_names, find_device, similar_devices
from ullage.plan.catalogue.devices import _IGNORED
from ullage.plan.catalogue.names import key_of

DEVICES = {name: find_device(name) for name in device_names()}


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_has_figures_that_can_be_and_says_where_they_come_from(name):
    device = DEVICES[name]
    assert device.name == name
    for source in (device.source, device.memory_source, device.compute_source):
        assert source is None or source.startswith("https://")
    assert 0.9 * device.label_bytes < device.memory_bytes <= 1.024**3 * device.label_bytes
    assert device.memory_note
    assert device.memory_bytes == device.label_bytes or "report" in device.memory_note
    low, high = (20e9, 1000e9) if device.kind == "cpu" else (250e9, 10_000e9)
    assert low < device.bandwidth_bytes_per_second < high
    assert all(5e12 < flops < 20_000e12 for flops in device.flops.values())


@pytest.mark.parametrize("name", [name for name, device in DEVICES.items() if device.kind != "cpu"])
def test_fewer_bits_are_not_slower_and_sparsity_is_not_counted(name):
    flops = DEVICES[name].flops
    assert "fp16" in flops
    assert flops.get("bf16", flops["fp16"]) == flops["fp16"]
    assert flops.get("fp8", 2 * flops["fp16"]) == pytest.approx(2 * flops["fp16"], rel=0.02)
    assert flops.get("fp4", 4 * flops["fp16"]) >= 3.9 * flops["fp16"]
    assert flops.get("fp32", 0) < flops["fp16"]


def test_known_figures():
    assert DEVICES["H100 SXM 80GB"].memory_bytes == pytest.approx(79.1 * 1024**3)
    assert DEVICES["H100 SXM 80GB"].bandwidth_bytes_per_second == 3350e9
    assert DEVICES["H100 SXM 80GB"].flops["bf16"] == 989e12
    assert DEVICES["L4"].memory_bytes == 23034 * 1024**2
    assert DEVICES["12x DDR5-4800"].bandwidth_bytes_per_second == pytest.approx(12 * 4800e6 * 8)
    assert {device.kind for device in DEVICES.values()} == {"gpu", "npu", "cpu"}
    assert len(DEVICES) >= 30


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94GB"),
        ("NVIDIA H200", "H200 141GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server Edition"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("rtx4090", "RTX 4090"),
        ("h100-sxm", "H100 SXM 80GB"),
        ("Ascend910B3", "Ascend 910B3"),
        ("910b3", "Ascend 910B3"),
    ],
)
def test_a_device_is_found_by_what_its_driver_and_people_call_it(spelling, name):
    assert find_device(spelling) is DEVICES[name]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100", {"A100 40GB", "A100 SXM 80GB", "A100 PCIe 80GB"}),
        ("H100", {"H100 SXM 80GB", "H100 PCIe 80GB", "H100 NVL 94GB"}),
        ("V100", {"V100 PCIe 16GB", "V100 SXM2 32GB"}),
        ("Ascend 910B", {"Ascend 910B2", "Ascend 910B3", "Ascend 910B4"}),
    ],
)
def test_a_name_of_several_devices_gets_them_all_as_suggestions(name, meant):
    assert find_device(name) is None
    assert set(similar_devices(name)) == meant


@pytest.mark.parametrize(
    ("misspelt", "meant"), [("RTX 4900", "RTX 4090"), ("H1000 SXM", "H100 SXM 80GB"), ("MI3000X", "MI300X")]
)
def test_a_misspelt_device_gets_a_suggestion(misspelt, meant):
    assert find_device(misspelt) is None
    assert meant in similar_devices(misspelt)


@pytest.mark.parametrize("name", ["", "NVIDIA", "no such thing at all"])
def test_what_is_near_to_nothing_gets_none(name):
    assert find_device(name) is None
    assert similar_devices(name) == ()


def test_no_two_devices_share_a_spelling():
    keys = Counter(
        key
        for device in DEVICES.values()
        for key in {key_of(n, ignored=_IGNORED) for n in (device.name, *device.aliases)}
    )
    assert [key for key, times in keys.items() if times > 1 or not key] == []
