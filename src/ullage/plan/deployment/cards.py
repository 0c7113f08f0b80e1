"""The devices of a plan: from the catalogue, as plain numbers, or those of this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from ullage.base.byte_sizes import format_bytes
from ullage.base.errors import ConfigError
from ullage.plan.catalogue import find_device, similar_devices
from ullage.plan.deployment.options import PlanOptions, positive_size
from ullage.plan.machine import available_memory_bytes, num_cores, resident_bytes

MIB = 1 << 20
WORKING_SET = 128 * MIB
NUM_PASSES = 9
PREFETCH_BYTES = (0, 4096, 32768)
"""How far ahead to prefetch; which is best depends on the processor."""


@dataclass(frozen=True, slots=True)
class Cards:
    """All devices of a deployment.

    :ivar memory_bytes: of each
    :ivar split_by_memory: layers are given out in proportion to it, as llama.cpp does; otherwise every rank has the
        same share, and the smallest card decides
    :ivar bandwidth: bytes a second, of the slowest; None: not known
    :ivar flops: operations a second by number type, of the slowest
    """

    names: tuple[str, ...]
    memory_bytes: tuple[int, ...]
    bandwidth: float | None = None
    flops: Mapping[str, float] = field(default_factory=dict)
    split_by_memory: bool = False

    @property
    def rank_bytes(self) -> int:
        """Memory for the share of one rank: a share of all cards together where they are filled alike."""
        return sum(self.memory_bytes) // len(self.memory_bytes) if self.split_by_memory else min(self.memory_bytes)

    @property
    def tensor_split(self) -> str | None:
        """What llama.cpp is told of unequal cards (``--tensor-split``): their memory in GiB; None: they are equal."""
        if not self.split_by_memory or len(set(self.memory_bytes)) == 1:
            return None
        return ",".join(f"{size / 2**30:.4g}" for size in self.memory_bytes)

    @property
    def name(self) -> str:
        """For people: each name once."""
        return ", ".join(dict.fromkeys(self.names))


def cards_of(options: PlanOptions) -> Cards | None:
    """The devices that are asked for; else those of this machine; None: none are named and the pool is given.

    :raises ConfigError: an unknown device, not a size, or another number of devices than the ranks need
    """
    if options.memory is not None:
        texts = [text.strip() for text in options.memory.split(",")]
        sizes = tuple(positive_size(text, "memory") for text in texts)
        return _spread(options, Cards(tuple(_named(*pair) for pair in zip(texts, sizes, strict=True)), sizes))
    if options.device is not None:
        return _spread(options, _catalogued(options.device))
    return None if options.kv_memory is not None and not options.measure else _detected(options)


def _named(text: str, size: int) -> str:
    """A size as it was typed, or readable where it was typed in bytes."""
    return format_bytes(size) if text.isdigit() else text


def _catalogued(text: str) -> Cards:
    found = []
    for name in text.split(","):
        device = find_device(name.strip())
        if device is None:
            near = similar_devices(name)
            hint = "did you mean " + " or ".join(near) + "?" if near else "see: ullage plan --list"
            raise ConfigError(f"device {name.strip()!r} is not in the catalogue, or not one device only", hint=hint)
        found.append(device)
    types = set.intersection(*(set(device.flops) for device in found))
    return Cards(
        tuple(device.name for device in found),
        tuple(device.memory_bytes for device in found),
        min(device.bandwidth_bytes_per_second for device in found),
        {name: min(device.flops[name] for device in found) for name in types},
    )


def _spread(options: PlanOptions, cards: Cards) -> Cards:
    """One device named stands for all; several must be as many as the ranks."""
    needed = options.num_devices
    if len(cards.names) not in (1, needed):
        raise ConfigError(
            f"{len(cards.names)} devices are named, but the ranks are {needed}",
            hint="name one device for all, or one for each of tensor x pipeline x data parallel",
        )
    repeat = needed if len(cards.names) == 1 else 1
    by_memory = options.engine == "llamacpp"
    return Cards(cards.names * repeat, cards.memory_bytes * repeat, cards.bandwidth, cards.flops, by_memory)


def _detected(options: PlanOptions) -> Cards:
    """The graphics cards that the driver reports, else the memory that a process may use here."""
    cards = [] if options.engine == "ullage" else _graphics_cards()
    if cards:
        needed = options.num_devices
        if len(cards) < needed:
            raise ConfigError(f"{needed} ranks need as many devices, this machine has {len(cards)}")
        names, sizes = zip(*cards[:needed], strict=True)
        known = find_device(names[0])
        bandwidth, flops = (None, {}) if known is None else (known.bandwidth_bytes_per_second, known.flops)
        return Cards(names, sizes, bandwidth, flops, options.engine == "llamacpp")
    memory = available_memory_bytes() + resident_bytes()
    bandwidth, flops = _measured() if options.measure else (None, {})
    return _spread(options, Cards((f"this machine ({num_cores()} cores)",), (memory,), bandwidth, flops))


def _measured() -> tuple[float, dict[str, float]]:
    """Bytes a second that all cores read from a working set of the size of small weights, by the best way of reading;
    operations a second in bf16.

    :raises ConfigError: the native kernels aren't there
    """
    from statistics import median

    from ullage.kernels.native import native_isas, peak_operations, read_seconds

    threads = num_cores()
    passes = [read_seconds(WORKING_SET, threads, NUM_PASSES, prefetch) for prefetch in PREFETCH_BYTES]
    peak = max(peak_operations(isa, "bf16", threads) for isa in native_isas() if not isa.endswith("imitated"))
    return WORKING_SET / min(map(median, passes)), {"bf16": peak}


def _graphics_cards() -> list[tuple[str, int]]:
    """Name and memory of each card of the NVIDIA driver; none where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    pairs = [line.rsplit(",", 1) for line in lines]
    return [(name.strip(), int(size) * MIB) for name, size in pairs if size.strip().isdigit()]
