"""Reads the header of a GGUF file: metadata and the table of tensors. Trusts nothing in it.

Every count, length, type and offset is checked against the file's size before it is used, so a damaged file costs an
error, never memory or time. Source: the GGUF specification (``docs/gguf.md`` of ggml), versions 2 and 3.

    magic · version · number of tensors · number of keys │ keys and values │ tensor table │ padding │ tensor data
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ModelFileError
from ullage.models.ggml_types import GGML_TYPES, GGMLType

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

MetadataValue = int | float | bool | str | list[str] | NDArray[np.generic]
"""Arrays of texts are lists, arrays of numbers numpy arrays."""

_MIN_KEY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_FLOAT32 = 6
_NUMBERS = ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "u1", None, None, "<u8", "<i8", "<f8")
"""numpy's types of the value types 0..12; texts and arrays are no numbers."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first (the file has them the other way round)."""
    type: GGMLType
    type_number: int
    start: int
    """From the beginning of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, GGUFTensor]


def read_header(path: Path, data: mmap.mmap | bytes) -> GGUFHeader:
    """:raises ModelFileError: not a GGUF file of version 2 or 3, truncated, or inconsistent"""
    cursor = _Cursor(path, data)
    _check_version(path, cursor)
    num_tensors, num_keys = cursor.u64(), cursor.u64()
    cursor.expect(num_keys, _MIN_KEY_BYTES, "metadata keys")
    cursor.expect(num_tensors, _MIN_TENSOR_BYTES, "tensors")
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_keys):
        key = cursor.text()
        if key in metadata:
            raise ModelFileError(f"{path}: metadata key {key!r:.80} stands twice")
        metadata[key] = cursor.value(key)
    tensors = _read_tensor_table(path, cursor, num_tensors, _alignment(path, metadata))
    return GGUFHeader(metadata, tensors)


def _check_version(path: Path, cursor: _Cursor) -> None:
    if cursor.take(4) != MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file (it doesn't begin with GGUF)")
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        raise ModelFileError(f"{path}: big-endian GGUF isn't supported", hint="use the little-endian file")
    if version not in (2, 3):
        raise ModelFileError(f"{path}: GGUF version {version} isn't supported", hint="versions 2 and 3 are")


def _alignment(path: Path, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ModelFileError(f"{path}: general.alignment must be a power of two, not {alignment!r:.80}")
    return alignment


def _read_tensor_table(path: Path, cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
    entries = []
    for _ in range(num_tensors):
        name, num_dimensions = cursor.text(), cursor.u32()
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise ModelFileError(f"{path}: tensor {name!r:.80} claims {num_dimensions} dimensions")
        dimensions = [cursor.u64() for _ in range(num_dimensions)]
        entries.append((name, dimensions, cursor.u32(), cursor.u64()))
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, dimensions, type_number, offset in entries:
        if name in tensors:
            raise ModelFileError(f"{path}: tensor {name!r:.80} stands twice")
        if offset % alignment:
            raise ModelFileError(f"{path}: tensor {name!r:.80} isn't aligned to {alignment} bytes")
        tensors[name] = _place_tensor(path, name, dimensions, type_number, data_start + offset)
    _check_ranges(path, tensors, cursor.size)
    return tensors


def _place_tensor(path: Path, name: str, dimensions: list[int], type_number: int, start: int) -> GGUFTensor:
    tensor_type = GGML_TYPES.get(type_number)
    if tensor_type is None:
        raise ModelFileError(f"{path}: tensor {name!r:.80} has unknown type {type_number}")
    if min(dimensions) == 0 or dimensions[0] % tensor_type.block_elements:
        raise ModelFileError(
            f"{path}: tensor {name!r:.80} of type {tensor_type.name} can't have rows of {dimensions[0]} elements"
        )
    num_elements = 1
    for size in dimensions:
        num_elements *= size
    num_bytes = num_elements // tensor_type.block_elements * tensor_type.block_bytes
    return GGUFTensor(name, tuple(reversed(dimensions)), tensor_type, type_number, start, num_bytes)


def _check_ranges(path: Path, tensors: Mapping[str, GGUFTensor], file_size: int) -> None:
    end = 0
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.start):
        if tensor.start < end:
            raise ModelFileError(f"{path}: the data of tensor {tensor.name!r:.80} overlaps another tensor's")
        end = tensor.start + tensor.num_bytes
        if end > file_size:
            raise ModelFileError(
                f"{path}: truncated: tensor {tensor.name!r:.80} ends at byte {end}, the file at {file_size}",
                hint="fetch the file again",
            )


class _Cursor:
    """A position in the file that never passes its end."""

    __slots__ = ("_data", "_path", "position", "size")

    def __init__(self, path: Path, data: mmap.mmap | bytes) -> None:
        self._path, self._data = path, data
        self.position, self.size = 0, len(data)

    def expect(self, count: int, min_bytes: int, what: str) -> None:
        """:raises ModelFileError: so many things can't be in the rest of the file"""
        if count * min_bytes > self.size - self.position:
            raise ModelFileError(
                f"{self._path}: truncated or damaged: {count} {what} can't fit in the "
                f"{self.size - self.position} bytes from byte {self.position}"
            )

    def take(self, count: int) -> bytes:
        self.expect(count, 1, "bytes")
        start = self.position
        self.position = start + count
        return self._data[start : self.position]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self) -> str:
        at = self.position
        encoded = self.take(self.u64())
        try:
            return encoded.decode("utf-8")
        except UnicodeDecodeError:
            raise ModelFileError(f"{self._path}: the text at byte {at} isn't UTF-8") from None

    def value(self, key: str) -> MetadataValue:
        value_type = self.u32()
        if value_type == _STRING:
            return self.text()
        if value_type != _ARRAY:
            number = self._numbers(key, value_type, 1)[0]
            # A float32 becomes its shortest decimal: 1e-06 as its writer meant, not 9.99999997e-07.
            scalar: int | float | bool = float(str(number)) if value_type == _FLOAT32 else number.item()
            return scalar
        element_type, count = self.u32(), self.u64()
        return self._texts(key, count) if element_type == _STRING else self._numbers(key, element_type, count)

    def _numbers(self, key: str, value_type: int, count: int) -> NDArray[np.generic]:
        number_type = _NUMBERS[value_type] if value_type < len(_NUMBERS) else None
        if number_type is None:
            raise ModelFileError(
                f"{self._path}: metadata key {key!r:.80} has value type {value_type}, no number or text"
            )
        dtype = np.dtype(number_type)
        self.expect(count, dtype.itemsize, f"values of {key!r:.80}")
        values = np.frombuffer(self._data, dtype, count, self.position).copy() if count else np.empty(0, dtype)
        self.position += count * dtype.itemsize
        if value_type != _BOOL:
            return values
        if count and values.max() > 1:
            raise ModelFileError(f"{self._path}: metadata key {key!r:.80} has a truth value other than 0 and 1")
        return values.astype(np.bool_)

    def _texts(self, key: str, count: int) -> list[str]:
        """A vocabulary has 262,144 of these, so this loop is written for speed."""
        self.expect(count, 8, f"texts of {key!r:.80}")
        data, size, at = self._data, self.size, self.position
        read_length = _U64.unpack_from
        texts: list[str] = []
        for _ in range(count):
            start = at + 8
            if start > size or (at := start + read_length(data, at)[0]) > size:
                raise ModelFileError(f"{self._path}: truncated or damaged within the texts of {key!r:.80}")
            try:
                texts.append(data[start:at].decode("utf-8"))
            except UnicodeDecodeError:
                raise ModelFileError(f"{self._path}: a text of {key!r:.80} at byte {start} isn't UTF-8") from None
        self.position = at
        return texts
