"""Read bandwidth and peaks of this machine, measured by native code while no engine runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from ullage.kernels.native import native_isas, peak_operations, read_seconds
from ullage.ops.bench.roofline import Machine

PREFETCH_BYTES = (0, 1024, 4096, 8192, 32768)
"""How far ahead to prefetch; which is best depends on the processor."""
NUM_PASSES = 7
PEAK_TYPES = ("bf16", "int8")
MIN_WORKING_SET = 32 << 20

ReadSeconds = Callable[[int, int, int, int], list[float]]


class ReadProbe:
    """Collects passes over a working set; call ``sample`` as often as the run allows, so that it sees the same machine
    as the engines do.

    :param working_set: bytes, those of the weights
    """

    def __init__(self, working_set: int, num_threads: int, read: ReadSeconds = read_seconds) -> None:
        self.working_set = max(working_set, MIN_WORKING_SET)
        self._num_threads = num_threads
        self._read = read
        self.rates: dict[int, list[float]] = {prefetch: [] for prefetch in PREFETCH_BYTES}
        """Bytes a second of each pass, by how far ahead it prefetched."""

    def sample(self) -> None:
        for prefetch, rates in self.rates.items():
            passes = self._read(self.working_set, self._num_threads, NUM_PASSES, prefetch)
            rates += [self.working_set / seconds for seconds in passes]

    @property
    def bytes_per_second(self) -> float:
        """Median of the way of reading whose median is highest."""
        return max(statistics.median(rates) for rates in self.rates.values())

    def describe(self) -> dict[str, Any]:
        return {
            "working_set_bytes": self.working_set,
            "median_bytes_per_second": self.bytes_per_second,
            "best_bytes_per_second": max(rate for rates in self.rates.values() for rate in rates),
            "samples_by_prefetch_bytes": {str(prefetch): rates for prefetch, rates in self.rates.items()},
        }


def measure_peaks(num_threads: int) -> dict[str, dict[str, float]]:
    """Operations a second by instruction set and type."""
    isas = [isa for isa in native_isas() if not isa.endswith("imitated")]
    return {isa: {kind: peak_operations(isa, kind, num_threads) for kind in PEAK_TYPES} for isa in isas}


def machine_of(read_bytes_per_second: float, peaks: dict[str, dict[str, float]]) -> Machine:
    """The peak is bf16's on the best instruction set. Byte products are twice as fast, but activations need two bytes
    each to lose no more than bf16 does: both ways end at the same rate.
    """
    return Machine(read_bytes_per_second, max(peak["bf16"] for peak in peaks.values()))
