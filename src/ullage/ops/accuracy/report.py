"""What was measured, as a table for people and as a file that another run can be held against."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ullage.ops.accuracy.measure import Measurement, Workload
from ullage.ops.accuracy.pieces import Text
from ullage.ops.bench.machine import describe_commit, describe_machine, describe_versions

COLUMNS = ("engine", "weights", "KV", "fed as", "KL mean", "KL p99", "KL max", "top-1", "perplexity")
NUM_TEXT_COLUMNS = 4
RESULT_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a result file says."""

    command: str
    """Without folders of this machine."""
    model_path: Path
    text: Text
    workload: Workload
    versions: Mapping[str, str]
    """Of peers."""
    measurements: Sequence[Measurement]

    def as_json(self) -> str:
        """One object; divergences in nats."""
        pieces = self.workload.pieces
        record = {
            "format": RESULT_FORMAT,
            "kind": "accuracy",
            "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}",
            "command": self.command,
            **describe_commit(),
            "versions": {**describe_versions(), **self.versions},
            "machine": describe_machine(),
            "model": {"name": self.model_path.name, "sha256": file_digest(self.model_path)},
            "text": {
                "names": self.text.names,
                "sha256": self.text.sha256,
                "num_tokens": pieces.num_text_tokens,
                "num_rows": pieces.num_rows,
                "rows_sha256": pieces.sha256,
                "piece_rows": [len(piece) for piece in pieces.token_ids],
            },
            "batch_size": self.workload.batch_size,
            "chunk_rows": self.workload.chunk_rows,
            "reference_perplexity": self.measurements[0].accuracy.reference_perplexity,
            "results": [asdict(measurement) for measurement in self.measurements],
        }
        return json.dumps(record, indent=2, ensure_ascii=False) + "\n"

    def title(self) -> str:
        pieces = self.workload.pieces
        reference = self.measurements[0].accuracy.reference_perplexity
        return (
            f"{self.model_path.name}: the next-token distribution against the float32 reference, in nats, over "
            f"the first {pieces.num_rows:,} tokens of {', '.join(self.text.names)}, in pieces of "
            f"{pieces.longest}; "
            f"the reference's perplexity is {reference:.4f}"
        )

    def as_markdown(self) -> str:
        lines = [
            "| " + " | ".join(COLUMNS) + " |",
            "|---" * NUM_TEXT_COLUMNS + "|--:" * (len(COLUMNS) - NUM_TEXT_COLUMNS) + "|",
        ]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows()]
        return f"{self.title()}.\n\n" + "\n".join(lines) + "\n"

    def rows(self) -> list[tuple[str, ...]]:
        """The cells under ``COLUMNS``."""
        return [_cells(measurement) for measurement in self.measurements]

    def save(self, folder: Path) -> Path:
        """:raises OSError: the folder can't be written"""
        path = folder / f"{datetime.now(UTC):%Y-%m-%d}-accuracy-{self.model_path.name.removesuffix('.gguf')}.json"
        path.write_text(self.as_json(), encoding="utf-8")
        return path


def _cells(measurement: Measurement) -> tuple[str, ...]:
    accuracy = measurement.accuracy
    return (
        measurement.engine,
        measurement.formats["weight_type"],
        measurement.formats["kv_cache_dtype"],
        measurement.feeding,
        *(f"{x:.6f}" for x in (accuracy.mean_divergence, accuracy.p99_divergence, accuracy.max_divergence)),
        f"{accuracy.top1_agreement:.2%}",
        f"{accuracy.perplexity:.4f}",
    )


def file_digest(path: Path) -> str | None:
    """SHA-256 of a model file; None of a folder."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
