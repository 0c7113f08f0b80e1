"""The one view of a model on disk, whatever its format: a spec, tensors by canonical name, tokenizer and template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ullage.models.spec import ModelSpec

if TYPE_CHECKING:
    from ullage.models.tokenizer import Tokenizer


class ModelFile(Protocol):
    """An opened model. Tensors are memory-mapped; nothing is read before it is asked for."""

    path: Path
    spec: ModelSpec

    def tensor_names(self) -> Iterator[str]:
        """Canonical names (see ``expected_tensors``), each exactly once, in execution order."""
        ...

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        """One tensor, dequantised to float32, in canonical shape and order (a fresh array: drop it when packed).

        :raises ModelFileError: when the data is truncated or holds NaN or infinity
        """
        ...

    def read_rows(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        """Rows ``first`` to ``first + count`` of a matrix, as ``read_tensor`` has them.

        :raises ModelFileError: as ``read_tensor``
        """
        ...

    def stored_type(self, name: str) -> str:
        """In which type the file holds a tensor: a GGUF type's name (``Q4_1``), or that of a float (``BF16``)."""
        ...

    def read_stored_rows(self, name: str, first: int, count: int) -> NDArray[np.uint8]:
        """Rows of a matrix as the file holds them, in canonical order.

        :returns: [count, bytes of a row]
        :raises ModelFileError: the file doesn't hold this tensor in blocks
        """
        ...

    def stored_bytes(self) -> int:
        """Bytes of tensor data in the file(s)."""
        ...

    def tokenizer(self) -> Tokenizer: ...

    def chat_template(self) -> str | None:
        """Source of the model's jinja2 chat template; None for a base model."""
        ...

    def release_pages(self) -> None:
        """Lets go of what of the file is in this process's memory; it comes back when it is read again."""
        ...

    def close(self) -> None: ...
