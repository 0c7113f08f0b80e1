"""Well-known devices: memory, bandwidth and compute as published."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ullage.base.byte_sizes import parse_bytes
from ullage.plan.catalogue.names import key_of, similar

_DEVICES = Path(__file__).parent / "devices.toml"
_IGNORED = re.compile(r"\b(nvidia|geforce|tesla|amd|instinct|intel|huawei|gpu)\b|\bascend")
_REPORTED = {
    None: "as labelled; what it reports isn't known",
    "CUDA": "as CUDA reports it to a program",
    "nvidia-smi": "as nvidia-smi reports it; CUDA gives a program a little less",
    "rocm-smi": "as rocm-smi reports it",
    "torch": "as torch reports it to a program",
}
"""What an entry's ``reported_by`` says about its memory."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a model can be put on.

    :ivar name: as its maker writes it
    :ivar kind: a graphics card, a neural processor, or a host whose processor computes
    :ivar aliases: other names of the same thing
    :ivar memory_bytes: what the device reports as its own in all, or its label where no such figure is known
    :ivar label_bytes: memory as its data sheet writes it; makers write GB for either unit, we read it as 1000³
    :ivar memory_note: who reports ``memory_bytes``, or that no reported figure is known, and what else to know
    :ivar bandwidth_bytes_per_second: of the memory, at its peak
    :ivar flops: operations a second without sparsity, at the peak, by number type; empty for a host
    :ivar source: address of the data sheet
    :ivar memory_source: address of the reported memory; None: as ``devices.toml`` says at its top
    :ivar compute_source: address of ``flops``; None: it is in ``source``
    """

    name: str
    kind: Literal["gpu", "npu", "cpu"]
    aliases: tuple[str, ...]
    memory_bytes: int
    label_bytes: int
    memory_note: str
    bandwidth_bytes_per_second: float
    flops: Mapping[str, float]
    source: str
    memory_source: str | None = None
    compute_source: str | None = None


def find_device(name: str) -> Device | None:
    """A well-known device; None: not in the catalogue, or more than one device has the name.

    :param name: in any case, with or without the maker
    """
    found = _names().get(key_of(name, ignored=_IGNORED))
    return None if found is None else _devices()[found]


def device_names() -> tuple[str, ...]:
    """Every device's name, in the catalogue's order: by maker and generation."""
    return tuple(_devices())


def similar_devices(name: str) -> tuple[str, ...]:
    """Names near to one that wasn't found, nearest first."""
    return similar(name, _names(), ignored=_IGNORED)


@cache
def _devices() -> Mapping[str, Device]:
    """Every device by its name. Read at the first call."""
    entries = tomllib.loads(_DEVICES.read_text("utf-8"))["devices"]
    return {entry["name"]: _device(entry) for entry in entries}


def _device(entry: dict[str, Any]) -> Device:
    reported_by = entry.get("reported_by")
    memory = entry["reported"] if reported_by else entry["memory"]
    return Device(
        entry["name"],
        entry["kind"],
        tuple(entry.get("aliases", ())),
        parse_bytes(memory, round_down=True),
        parse_bytes(entry["memory"]),
        "; ".join(filter(None, (_REPORTED[reported_by] if entry["kind"] != "cpu" else "", entry.get("note")))),
        entry["bandwidth_gb_per_second"] * 1e9,
        {name: value * 1e12 for name, value in entry["tflops"].items()},
        entry["source"],
        entry.get("memory_source"),
        entry.get("compute_source"),
    )


@cache
def _names() -> Mapping[str, str]:
    return {
        key_of(spelling, ignored=_IGNORED): device.name
        for device in _devices().values()
        for spelling in (device.name, *device.aliases)
    }
