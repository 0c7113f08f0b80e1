"""Runs each engine over the text and compares its logits, row by row, with the reference's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.base.errors import ConfigError
from ullage.kernels.reference import Floats
from ullage.models.model_file import ModelFile
from ullage.ops.accuracy.divergence import Accuracy, DivergenceTally
from ullage.ops.accuracy.feeding import Feeding, LogitSource, batch, one_row, prefill
from ullage.ops.accuracy.formats import Formats
from ullage.ops.accuracy.llamacpp import LlamaCppLogits
from ullage.ops.accuracy.native import native_logits
from ullage.ops.accuracy.pieces import Pieces
from ullage.ops.accuracy.reference import NumpyLogits, store_reference
from ullage.plan.machine import num_cores


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of the table."""

    engine: str
    formats: Formats
    feeding: str
    seconds: float
    """It took; no benchmark, the comparison is in it."""
    accuracy: Accuracy


@dataclass(frozen=True, slots=True)
class Workload:
    pieces: Pieces
    batch_size: int
    chunk_rows: int

    def feedings(self) -> list[Feeding]:
        """:raises ConfigError: more sequences side by side than rows"""
        if self.batch_size > self.pieces.num_rows:
            raise ConfigError(
                f"a batch of {self.batch_size} needs as many tokens, there are {self.pieces.num_rows}",
                hint="use a smaller --batch-size, or more --tokens",
            )
        return [
            one_row(self.pieces),
            batch(self.pieces, self.batch_size, self.chunk_rows),
            prefill(self.pieces, self.chunk_rows),
        ]


def compare(source: LogitSource, feeding: Feeding, pieces: Pieces, reference: Floats) -> Accuracy:
    """
    :param reference: [rows, vocabulary]
    :raises EngineError: logits that can't be compared
    """
    tally, first_rows = DivergenceTally(), pieces.first_rows
    measured_steps = [[part for part in step if part.measured] for step in feeding.steps]
    for parts, logits in zip(filter(None, measured_steps), source.run(feeding), strict=True):
        places = [(part.piece, position) for part in parts for position in range(part.start, part.stop)]
        for (piece, position), row in zip(places, logits, strict=True):
            tally.add(reference[first_rows[piece] + position], row, pieces.next_token(piece, position))
    return tally.summary()


def measure_all(
    model: ModelFile,
    workload: Workload,
    formats: list[Formats],
    *,
    threads: int | None,
    peers: Path | None,
    on_start: Callable[[str], None],
) -> tuple[list[Measurement], Mapping[str, str]]:
    """The reference, then the native kernels in each format, then llama.cpp where ``peers`` has it.

    :param on_start: told what begins now
    :returns: measurements, and versions of the peers by name
    :raises UllageError: an engine can't run this
    """
    pieces, feedings = workload.pieces, workload.feedings()
    llamacpp = peers and LlamaCppLogits(peers, model.path, pieces, threads=threads or num_cores())
    measured: list[Measurement] = []

    def measure(source: LogitSource) -> None:
        for feeding in feedings:
            on_start(f"{source.engine} {' '.join(source.formats.values())}, {feeding.name}")
            begun = time.perf_counter()
            accuracy = compare(source, feeding, pieces, reference)
            seconds = time.perf_counter() - begun
            measured.append(Measurement(source.engine, source.formats, feeding.name, seconds, accuracy))

    with tempfile.TemporaryDirectory(prefix="ullage-accuracy-") as folder:
        on_start("float32 reference")
        reference = store_reference(NumpyLogits(model, pieces), pieces, model.spec.vocab_size, Path(folder))
        for chosen in formats:
            source = native_logits(model, pieces, feedings, chosen, threads=threads)
            measure(source)
            source.close()
        if llamacpp:
            measure(llamacpp)
    return measured, {"llama-cpp-python": llamacpp.version} if llamacpp else {}
