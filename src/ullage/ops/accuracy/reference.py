"""The float32 reference: run once in numpy, its logits kept on disk for every comparison."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ullage.base.byte_sizes import format_bytes
from ullage.base.errors import ConfigError
from ullage.engine.numpy_runner import NumpyRunner
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import ScheduledRequest, ScheduledStep
from ullage.kernels.layout import numpy_memory
from ullage.kernels.reference import Floats
from ullage.models.layer_groups import layer_groups
from ullage.models.model_file import ModelFile
from ullage.ops.accuracy.feeding import Feeding, LogitSource, Part, prefill
from ullage.ops.accuracy.formats import Formats
from ullage.ops.accuracy.pieces import Pieces
from ullage.plan.ledger import MemoryLedger

CHUNK_ROWS = 128


class NumpyLogits:
    """Implements ``LogitSource``, for feedings of one sequence and at most ``CHUNK_ROWS`` rows a step."""

    engine = "numpy"
    formats: Formats = MappingProxyType({"weight_type": "float32", "kv_cache_dtype": "float32"})

    def __init__(self, model: ModelFile, pieces: Pieces) -> None:
        self._pieces = pieces
        num_blocks = len(layer_groups(model.spec))
        self._block_tables = [(block,) for block in range(num_blocks)]  # each block holds a whole piece
        sizes = (num_blocks, pieces.longest, CHUNK_ROWS)
        self._runner = NumpyRunner(
            model,
            MemoryLedger(numpy_memory(model.spec, *sizes)),
            num_blocks=num_blocks,
            block_size=pieces.longest,
            max_num_batched_tokens=CHUNK_ROWS,
            max_num_seqs=CHUNK_ROWS,
        )

    def run(self, feeding: Feeding) -> Iterator[Floats]:
        for (part,) in feeding.steps:
            yield self._runner.compute_logits(ScheduledStep(tuple(self._requests(part))))

    def _requests(self, part: Part) -> Iterator[ScheduledRequest]:
        """One for each row, all in the same blocks: the runner has logits for the last row of a request only."""
        token_ids = self._pieces.token_ids[part.piece]
        for position in range(part.start, part.stop):
            yield ScheduledRequest(
                request_id=position,
                token_ids=(token_ids[position],),
                num_computed_tokens=position,
                block_tables=self._block_tables,
                sampling=SamplingParams(),
                seed=0,
                needs_logits=True,
                history=(),
                num_prompt_tokens=0,
            )


def store_reference(source: LogitSource, pieces: Pieces, vocab_size: int, folder: Path) -> Floats:
    """Runs the reference over all pieces.

    :param folder: gets one file of ``rows x vocab_size x 4`` bytes
    :returns: [rows, vocab_size], mapped from that file
    :raises ConfigError: the disk has no room for it
    """
    num_bytes = pieces.num_rows * vocab_size * 4
    free_bytes = shutil.disk_usage(folder).free
    if num_bytes > free_bytes:
        raise ConfigError(
            f"the reference takes {format_bytes(num_bytes)} on disk, {folder} has {format_bytes(free_bytes)}",
            hint="set TMPDIR to a folder with more room, or use fewer --tokens",
        )
    stored = np.memmap(folder / "reference.f32", np.float32, "w+", shape=(pieces.num_rows, vocab_size))
    row = 0
    for logits in source.run(prefill(pieces, CHUNK_ROWS)):
        stored[row : row + len(logits)] = logits
        row += len(logits)
    assert row == pieces.num_rows
    return stored
