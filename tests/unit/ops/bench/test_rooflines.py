"""How measured passes become the figures of a roofline."""

from __future__ import annotations

import pytest

from ullage.kernels.native import native_isas, peak_operations, read_seconds
from ullage.ops.bench.rooflines import MIN_WORKING_SET, NUM_PASSES, PREFETCH_BYTES, ReadProbe, machine_of


def test_the_median_of_the_best_way_of_reading_counts():
    def read(num_bytes, num_threads, num_passes, prefetch_bytes):
        assert (num_bytes, num_threads) == (MIN_WORKING_SET * 2, 2)
        seconds = 1.0 if prefetch_bytes == 4096 else 2.0
        return [seconds / 4] + [seconds] * (num_passes - 1)

    probe = ReadProbe(MIN_WORKING_SET * 2, 2, read)
    probe.sample()
    probe.sample()
    assert probe.bytes_per_second == pytest.approx(MIN_WORKING_SET * 2)
    described = probe.describe()
    assert described["best_bytes_per_second"] == pytest.approx(MIN_WORKING_SET * 8)
    samples = described["samples_by_prefetch_bytes"]
    assert list(samples) == [str(size) for size in PREFETCH_BYTES]
    assert {len(rates) for rates in samples.values()} == {2 * NUM_PASSES}


def test_a_small_model_is_not_measured_in_the_nearest_cache():
    assert ReadProbe(1000, 1).working_set == MIN_WORKING_SET


def test_the_peak_is_that_of_the_weights_type_on_the_best_instruction_set():
    peaks = {"new": {"bf16": 2.0, "int8": 4.0}, "old": {"bf16": 1.0, "int8": 1.0}}
    assert machine_of(10.0, peaks).operations_per_second == 2.0
    assert machine_of(10.0, peaks | {"tiles": {"bf16": 9.0, "int8": 4.0}}).operations_per_second == 9.0


def test_the_native_figures_are_there_for_every_instruction_set():
    assert len(read_seconds(8 << 20, 2, 3, 1024)) == 3
    assert all(seconds > 0 for seconds in read_seconds(8 << 20, 1, 2, 0))
    assert all(peak_operations(isa, kind, 1) > 1e8 for isa in native_isas() for kind in ("bf16", "int8"))


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="instruction set"):
        peak_operations("abacus", "bf16", 1)
    with pytest.raises(ValueError, match="2 MiB for each thread"):
        read_seconds(1 << 20, 1, 1, 0)
