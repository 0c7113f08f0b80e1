"""The ways an engine is fed, because each takes other kernels: one row, a batch of rows, chunks of a prompt.

Whatever the way, each row of the text is measured exactly once, with the whole piece before it as its context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from ullage.kernels.reference import Floats
from ullage.ops.accuracy.formats import Formats
from ullage.ops.accuracy.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Part:
    """Positions ``start .. stop - 1`` of a piece, run in one step on one of the engine's sequences."""

    sequence: int
    piece: int
    start: int
    """0 begins a piece: what the sequence held before is forgotten."""
    stop: int
    measured: bool
    """Whether the logits of these rows are wanted. Not where only keys and values are needed."""

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


Step = tuple[Part, ...]
"""Parts of different sequences that run at once."""


@dataclass(frozen=True, slots=True)
class Feeding:
    name: str
    steps: tuple[Step, ...]

    @property
    def num_sequences(self) -> int:
        return 1 + max(part.sequence for step in self.steps for part in step)

    @property
    def most_rows(self) -> int:
        """In one step."""
        return max(sum(part.num_rows for part in step) for step in self.steps)

    @property
    def most_measured_rows(self) -> int:
        """In one step."""
        return max(sum(part.num_rows for part in step if part.measured) for step in self.steps)


class LogitSource(Protocol):
    """An engine that can be measured."""

    @property
    def engine(self) -> str: ...

    @property
    def formats(self) -> Formats:
        """How it holds weights, keys and values; complete once it has run."""
        ...

    def run(self, feeding: Feeding) -> Iterator[Floats]:
        """[measured rows, vocabulary] of each step that has any, in order; valid until the next."""
        ...


def one_row(pieces: Pieces) -> Feeding:
    """Token by token, as a single stream decodes."""
    return Feeding("one row", prefill(pieces, 1).steps)


def prefill(pieces: Pieces, chunk_rows: int) -> Feeding:
    """Piece by piece in chunks, as prompts are read."""
    chunks = [
        step
        for i, piece in enumerate(pieces.token_ids)
        for step in _chunks(0, i, len(piece), chunk_rows, measured=True)
    ]
    return Feeding(f"prefill by {chunk_rows}", tuple(chunks))


def batch(pieces: Pieces, num_sequences: int, chunk_rows: int) -> Feeding:
    """Side by side: the rows are dealt out in ``num_sequences`` runs of equal length (but for one row).

    A run that starts within a piece has what comes before it as a prompt, read in chunks. So the sequences of a step
    stand at different positions, as those of a server do::

        piece 0   [ run 0 | run 1 | run 2 ]      run 2 reads the rows of runs 0 and 1 first
    """
    assert 0 < num_sequences <= pieces.num_rows
    places = [(i, position) for i, piece in enumerate(pieces.token_ids) for position in range(len(piece))]
    bounds = [len(places) * i // num_sequences for i in range(num_sequences + 1)]
    runs = [places[first:stop] for first, stop in pairwise(bounds)]
    steps: list[Step] = []
    for sequence, run in enumerate(runs):
        piece, position = run[0]
        steps += _chunks(sequence, piece, position, chunk_rows, measured=False)
    for t in range(max(len(run) for run in runs)):
        rows = [(sequence, *run[t]) for sequence, run in enumerate(runs) if t < len(run)]
        steps.append(tuple(Part(s, piece, position, position + 1, measured=True) for s, piece, position in rows))
    return Feeding(f"batch of {num_sequences}", tuple(steps))


def _chunks(sequence: int, piece: int, stop: int, chunk_rows: int, *, measured: bool) -> Iterator[Step]:
    """The piece from its start up to position ``stop``, on its own."""
    for start in range(0, stop, chunk_rows):
        yield (Part(sequence, piece, start, min(start + chunk_rows, stop), measured),)
