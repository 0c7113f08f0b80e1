"""A digest of a model's weights, by which their answers can be told from those of others."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import Future
from pathlib import Path

from ullage.base.errors import ModelFileError

WEIGHT_SUFFIXES = (".gguf", ".safetensors")


def weights_digest(path: Path) -> str:
    """SHA-256 of a GGUF file, or over the weight files of a folder in the order of their names. Reads all of them.

    :raises ModelFileError: there are none, or one can't be read
    """
    try:
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix in WEIGHT_SUFFIXES)
        digests = [_digest(file) for file in files]
    except OSError as error:
        raise ModelFileError(f"can't read {error.filename or path}: {error.strerror}") from error
    if not digests:
        raise ModelFileError(f"{path} has no file of weights")
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def begin_weights_digest(path: Path) -> Future[str]:
    """On a thread that holds nobody up who wants to end the process. The future always ends: with the digest, or with
    ``ModelFileError``.
    """
    result: Future[str] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(weights_digest(path))
        except ModelFileError as error:
            result.set_exception(error)
        finally:
            if not result.done():  # an error of ours: the thread reports it, and nobody waits for ever
                result.set_exception(ModelFileError(f"the weights of {path} can't be told from others"))

    threading.Thread(target=run, name="weights-digest", daemon=True).start()
    return result
