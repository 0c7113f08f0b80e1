"""Engines held against the reference: equal ones, one disturbed by a known amount, and the native kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.model_fixtures import tiny_model

from ullage.base.errors import ConfigError
from ullage.ops.accuracy import reference as reference_module
from ullage.ops.accuracy.divergence import log_probabilities
from ullage.ops.accuracy.feeding import Feeding, prefill
from ullage.ops.accuracy.formats import all_formats, format_choices
from ullage.ops.accuracy.measure import Workload, compare, measure_all
from ullage.ops.accuracy.pieces import Pieces
from ullage.ops.accuracy.reference import CHUNK_ROWS, NumpyLogits, store_reference

MODEL = tiny_model("llama")
VOCABULARY = MODEL.spec.vocab_size
DRAWN = np.random.default_rng(0).integers(0, VOCABULARY, 75).tolist()
PIECES = Pieces((tuple(DRAWN[:33]), tuple(DRAWN[33:66]), tuple(DRAWN[66:])), 80)
MOST_NATS = {"bf16": 0.005, "int8": 0.02}
"""By weight type, with activations, keys and values rounded too. A misplaced row costs several nats."""
MOST_NATS_OF_OTHERS = 0.5


@pytest.fixture
def stored(tmp_path) -> np.ndarray:
    return store_reference(NumpyLogits(MODEL, PIECES), PIECES, VOCABULARY, tmp_path)


class Disturbed(NumpyLogits):
    """Adds ``shift`` to the logit of token 3."""

    shift = 0.5

    def run(self, feeding: Feeding) -> Iterator[np.ndarray]:
        for logits in super().run(feeding):
            other = logits.copy()
            other[:, 3] += self.shift
            yield other


def test_an_identical_engine_has_no_divergence_at_all(stored):
    accuracy = compare(NumpyLogits(MODEL, PIECES), prefill(PIECES, CHUNK_ROWS), PIECES, stored)
    assert (accuracy.num_positions, accuracy.mean_divergence, accuracy.max_divergence) == (75, 0, 0)
    assert accuracy.top1_agreement == 1
    assert accuracy.perplexity == accuracy.reference_perplexity


def test_a_disturbed_engine_has_the_divergence_worked_out_by_hand(stored):
    accuracy = compare(Disturbed(MODEL, PIECES), prefill(PIECES, CHUNK_ROWS), PIECES, stored)
    # q_i = p_i / z but for token 3, e^s p_3 / z, with z = 1 + p_3 (e^s - 1): KL = ln z - s p_3
    shares = [math.exp(log_probabilities(row)[3]) for row in stored]
    expected = [math.log(1 + p * math.expm1(0.5)) - 0.5 * p for p in shares]
    assert accuracy.mean_divergence == pytest.approx(np.mean(expected), rel=1e-4)
    assert accuracy.max_divergence == pytest.approx(max(expected), rel=1e-4)


def test_the_perplexity_is_that_of_the_text_s_own_next_tokens(stored):
    accuracy = compare(NumpyLogits(MODEL, PIECES), prefill(PIECES, CHUNK_ROWS), PIECES, stored)
    rows = [row for row in range(75) if row not in (32, 65, 74)]  # the ends of pieces have no next token
    losses = [-log_probabilities(stored[row])[DRAWN[row + 1]] for row in rows]
    assert accuracy.reference_perplexity == pytest.approx(math.exp(np.mean(losses)))


def test_every_format_and_feeding_of_the_kernels_is_measured_and_near_the_reference():
    formats, started = all_formats(format_choices()), []
    measurements, versions = measure_all(
        MODEL, Workload(PIECES, 4, 16), formats, threads=2, peers=None, on_start=started.append
    )
    assert [(m.formats, m.feeding) for m in measurements] == [
        (chosen, feeding) for chosen in formats for feeding in ("one row", "batch of 4", "prefill by 16")
    ]
    assert len(started) == 1 + len(measurements)
    assert versions == {}
    for measurement in measurements:
        most_nats = MOST_NATS.get(measurement.formats["weight_type"], MOST_NATS_OF_OTHERS)
        assert 0 < measurement.accuracy.mean_divergence < most_nats
        assert measurement.accuracy.num_positions == 75


def test_a_disk_without_room_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(reference_module.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    with pytest.raises(ConfigError, match=r"the reference takes 79\.7 KiB on disk, .* has 1000 B"):
        store_reference(NumpyLogits(MODEL, PIECES), PIECES, VOCABULARY, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_more_sequences_than_tokens_is_refused():
    with pytest.raises(ConfigError, match="a batch of 76 needs as many tokens, there are 75"):
        Workload(PIECES, 76, 16).feedings()


def test_peers_without_llama_cpp_are_refused_before_minutes_of_measuring(tmp_path):
    started: list[str] = []
    with pytest.raises(ConfigError, match="has no llamacpp/bin/python"):
        measure_all(MODEL, Workload(PIECES, 4, 16), [], threads=1, peers=Path(tmp_path), on_start=started.append)
    assert started == []
