"""Reads safetensors files, one or a set of shards. Trusts nothing in their headers.

Source: the format description of the safetensors project.

    8 bytes: header length │ header: JSON, name → dtype, shape, data_offsets │ tensor data, without holes
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from ullage.base.errors import ModelFileError
from ullage.models.fields import parse_json_object, read_json_object
from ullage.models.mapped_file import MappedFile

MAX_HEADER_BYTES = 100_000_000
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_ITEM_BYTES = MappingProxyType(
    {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1}
    | {"U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8}
)
_DECODERS: Mapping[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = MappingProxyType(
    {
        "F64": lambda stored: stored.view("<f8").astype(np.float32),
        "F32": lambda stored: stored.view("<f4"),
        "F16": lambda stored: stored.view("<f2").astype(np.float32),
        # bfloat16 is the upper half of a float32.
        "BF16": lambda stored: (stored.view("<u2").astype(np.uint32) << 16).view(np.float32),
    }
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """From the beginning of the file."""
    num_bytes: int


class SafetensorsFile:
    """One file. Opening it reads the header and checks it against the file.

    :raises ModelFileError: unreadable or damaged
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            self.tensors: Mapping[str, StoredTensor] = _read_header(path, self._file.data)
        except ModelFileError:
            self.close()
            raise

    def check_readable(self, name: str) -> None:
        """:raises ModelFileError: the tensor's dtype can't be turned into floats here"""
        dtype = self.tensors[name].dtype
        if dtype not in _DECODERS:
            raise ModelFileError(
                f"{self.path}: tensor {name} has dtype {dtype}, which can't be read",
                hint=f"dtypes that can: {', '.join(_DECODERS)}",
            )

    def read(self, name: str, first_row: int = 0, num_rows: int | None = None) -> NDArray[np.float32]:
        """Some rows of a matrix, or all of any tensor.

        :raises ModelFileError: NaN or infinity among the values
        """
        tensor, item_bytes = self.tensors[name], _ITEM_BYTES[self.tensors[name].dtype]
        shape = tensor.shape if num_rows is None else (num_rows, *tensor.shape[1:])
        start = tensor.start + first_row * math.prod(tensor.shape[1:]) * item_bytes
        decode = _DECODERS[tensor.dtype]
        values = self._file.read_values(name, start, math.prod(shape), decode, block_bytes=item_bytes)
        return values.reshape(shape)

    def release_pages(self) -> None:
        self._file.release_pages()

    def close(self) -> None:
        self._file.close()


def open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor name → the opened file that holds it, for a folder with one file or with an index of shards.

    :raises ModelFileError: no such files, a shard is missing or damaged, or the index and the shards disagree
    """
    index = folder / INDEX_NAME
    if not index.exists():
        if not (folder / SINGLE_NAME).exists():
            raise ModelFileError(
                f"{folder}: neither {SINGLE_NAME} nor {INDEX_NAME} is there",
                hint="weights in other formats must be converted to safetensors first",
            )
        single = SafetensorsFile(folder / SINGLE_NAME)
        return dict.fromkeys(single.tensors, single)
    shard_names = _read_index(index)
    missing = sorted({shard for shard in shard_names.values() if not (folder / shard).is_file()})
    if missing:
        raise ModelFileError(
            f"{folder}: {len(missing)} of {len(set(shard_names.values()))} shards are missing, first {missing[0]}",
            hint="fetch the missing files",
        )
    opened: dict[str, SafetensorsFile] = {}
    try:
        for shard in sorted(set(shard_names.values())):
            opened[shard] = SafetensorsFile(folder / shard)
        for name, shard in shard_names.items():
            if name not in opened[shard].tensors:
                raise ModelFileError(f"{index}: tensor {name!r:.80} should be in {shard}, but isn't")
    except ModelFileError:
        for file in opened.values():
            file.close()
        raise
    return {name: opened[shard] for name, shard in shard_names.items()}


def _read_index(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index, MAX_HEADER_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index}: weight_map is missing or not an object")
    for shard in weight_map.values():
        # A shard lies beside its index: anything else could name any file of this machine.
        if not isinstance(shard, str) or Path(shard).name != shard or "\\" in shard or "\0" in shard:
            raise ModelFileError(f"{index}: {shard!r:.80} isn't the name of a file in the same folder")
    return weight_map


def _read_header(path: Path, data: mmap.mmap) -> dict[str, StoredTensor]:
    if len(data) < 8:
        raise ModelFileError(f"{path}: truncated: {len(data)} bytes can't be a safetensors file")
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ModelFileError(f"{path}: truncated or not a safetensors file: a header of {header_bytes} bytes can't fit")
    header = parse_json_object(path, data[8 : 8 + header_bytes], "the header")
    header.pop("__metadata__", None)
    data_start = 8 + header_bytes
    tensors = {name: _parse_tensor(path, name, entry, data_start) for name, entry in header.items()}
    end = data_start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].num_bytes)):
        if tensor.start != end:
            raise ModelFileError(f"{path}: the data of tensor {name!r:.80} overlaps another's or leaves a hole")
        end += tensor.num_bytes
    if end != len(data):
        raise ModelFileError(
            f"{path}: truncated or damaged: the tensors end at byte {end}, the file at {len(data)}",
            hint="fetch the file again",
        )
    return tensors


def _parse_tensor(path: Path, name: str, entry: object, data_start: int) -> StoredTensor:
    dtype, shape, offsets = (
        (entry.get("dtype"), entry.get("shape"), entry.get("data_offsets"))
        if isinstance(entry, dict)
        else (None, None, None)
    )
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise ModelFileError(f"{path}: tensor {name!r:.80} has unknown dtype {dtype!r:.80}")
    if not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise ModelFileError(f"{path}: tensor {name!r:.80} has no proper shape or data_offsets")
    num_bytes = offsets[1] - offsets[0]
    if num_bytes != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise ModelFileError(f"{path}: tensor {name!r:.80}: {num_bytes} bytes don't hold shape {shape} of {dtype}")
    return StoredTensor(dtype, tuple(shape), data_start + offsets[0], num_bytes)


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
