"""A file mapped into memory, and the one loop that turns stored numbers into float32."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ModelFileError

_CHUNK_ELEMENTS = 1 << 18
"""Elements decoded at a time (1 MB of floats): what it needs besides the result stays in the CPU's cache."""


class MappedFile:
    """:raises ModelFileError: missing, unreadable or empty"""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelFileError(f"{path}: the file is empty", hint="fetch it again") from None
        except OSError as error:
            raise ModelFileError(f"{path}: can't be read: {error.strerror}") from None

    def read_values(
        self,
        name: str,
        start: int,
        num_elements: int,
        decode: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
        block_elements: int = 1,
        block_bytes: int = 1,
    ) -> NDArray[np.float32]:
        """The flat values of one tensor, a fresh array.

        Needs little memory besides the result: pages of the file are let go as soon as they're decoded, so that they
        don't count as this process's memory.

        :param start: byte of the file where the tensor begins; its whole range was checked when the file was opened
        :param decode: stored bytes (any whole number of blocks) → floats
        :raises ModelFileError: NaN or infinity among the values
        """
        values = np.empty(num_elements, np.float32)
        for first in range(0, num_elements, _CHUNK_ELEMENTS):
            chunk = values[first : first + _CHUNK_ELEMENTS]
            chunk_start = start + first // block_elements * block_bytes
            self._decode_into(chunk, decode, chunk_start, len(chunk) // block_elements * block_bytes)
            if not _all_finite(chunk):
                raise ModelFileError(
                    f"{self.path}: tensor {name} holds NaN or infinity", hint="the file is damaged; fetch it again"
                )
        return values

    def release_pages(self) -> None:
        """Lets go of all pages: reading one brings its neighbours along."""
        self._let_go(0, len(self.data))

    def close(self) -> None:
        """Idempotent. Where an interrupt keeps a view of the data alive, the system unmaps it with the last view."""
        with suppress(BufferError):
            self.data.close()

    def _decode_into(
        self,
        values: NDArray[np.float32],
        decode: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
        start: int,
        num_bytes: int,
    ) -> None:
        stored = np.frombuffer(self.data, np.uint8, num_bytes, start)
        with np.errstate(all="ignore"):  # damaged scales overflow; the check for infinity finds them
            values[:] = decode(stored).reshape(-1)
        self._let_go(start, num_bytes)

    def read_bytes(self, start: int, num_bytes: int) -> NDArray[np.uint8]:
        """Stored bytes, a fresh array; the pages of the file are let go."""
        stored = np.frombuffer(self.data, np.uint8, num_bytes, start).copy()
        self._let_go(start, num_bytes)
        return stored

    def _let_go(self, start: int, num_bytes: int) -> None:
        first_page = start // mmap.PAGESIZE * mmap.PAGESIZE
        whole_pages = (start + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - first_page
        if whole_pages > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED, first_page, whole_pages)


def _all_finite(values: NDArray[np.float32]) -> bool:
    with np.errstate(invalid="ignore"):
        low, high = values.min(), values.max()  # both carry a NaN on, and need no array of flags
    return bool(np.isfinite(low) and np.isfinite(high))
