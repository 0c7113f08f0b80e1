"""llama.cpp on the same file and the same token ids, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from ullage.base.errors import ConfigError, EngineError
from ullage.kernels.reference import Floats
from ullage.ops.accuracy import llamacpp_logits
from ullage.ops.accuracy.feeding import Feeding
from ullage.ops.accuracy.formats import Formats
from ullage.ops.accuracy.pieces import Pieces


class LlamaCppLogits:
    """Implements ``LogitSource``. Each run is a process; its logits come through a pipe and are never held whole.

    :param peers: folder that holds ``llamacpp``, a virtual environment with llama-cpp-python
    :raises ConfigError: no such environment, or the model isn't one GGUF file
    """

    def __init__(self, peers: Path, model_path: Path, pieces: Pieces, *, threads: int) -> None:
        self._python = peers / "llamacpp" / "bin" / "python"
        if not self._python.exists():
            raise ConfigError(f"{peers} has no llamacpp/bin/python", hint="make it: python -m venv, llama-cpp-python")
        if not model_path.is_file():
            raise ConfigError(f"llama.cpp runs GGUF files, {model_path} is none", hint="leave --peers out")
        self._model_path = model_path
        self._pieces = pieces
        self._threads = threads
        self.engine = "llama.cpp"
        self.formats: Formats = {"weight_type": "file's own"}
        self.version = ""
        """Of llama-cpp-python; known once it has run."""

    def run(self, feeding: Feeding) -> Iterator[Floats]:
        """:raises EngineError: it fails; the message has its last words"""
        command = [str(self._python), llamacpp_logits.__file__]
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said) as process,
        ):
            try:
                yield from self._exchange(process, feeding)
                done = process.wait() == 0
            except (OSError, ValueError, _EndedEarly):
                done = False
            finally:
                process.kill()
            if not done:
                said.seek(0)
                last = said.read().decode(errors="replace").strip().splitlines()[-3:]
                raise EngineError("llama.cpp failed: " + " / ".join(last or ["it said nothing"]))

    def _exchange(self, process: subprocess.Popen[bytes], feeding: Feeding) -> Iterator[Floats]:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:
            process.stdin.write(self._job(feeding))
        header = json.loads(process.stdout.readline())
        self.version = header["version"]
        self.formats = {"weight_type": "file's own", "kv_cache_dtype": header["kv_cache_dtype"]}
        for step in feeding.steps:
            num_rows = sum(part.num_rows for part in step if part.measured)
            if num_rows:
                yield _read_rows(process.stdout, num_rows, header["vocab_size"])

    def _job(self, feeding: Feeding) -> bytes:
        steps = [[(p.sequence, p.piece, p.start, p.stop, p.measured) for p in step] for step in feeding.steps]
        job = {"model": str(self._model_path), "threads": self._threads, "steps": steps}
        return json.dumps(job | {"pieces": self._pieces.token_ids}).encode()


class _EndedEarly(Exception):
    """The process has closed its output before all logits were there."""


def _read_rows(stream: IO[bytes], num_rows: int, vocab_size: int) -> Floats:
    data = stream.read(num_rows * vocab_size * 4)
    if len(data) < num_rows * vocab_size * 4:
        raise _EndedEarly
    return np.frombuffer(data, np.float32).reshape(num_rows, vocab_size)
