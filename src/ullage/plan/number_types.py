"""Bytes of the number types in which engines keep keys, values and states."""

from __future__ import annotations

from ullage.base.errors import ConfigError

_ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "fp32": 4,
    "f32": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "f16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float8_e4m3fn": 1,
    "int8": 1,
}
_BLOCKS = {
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
"""GGML types: values in a block, and its bytes with its scale."""


def item_bytes(name: str, *, field: str) -> int:
    """Bytes of one value.

    :param field: where the name stands, for the error
    :raises ConfigError: an unknown type
    """
    if name not in _ITEM_BYTES:
        raise ConfigError(f"{field} is {name!r}, a type that isn't known", hint="known are " + ", ".join(_ITEM_BYTES))
    return _ITEM_BYTES[name]


def row_bytes(name: str, num_values: int, *, field: str) -> int:
    """Bytes of a row in a GGML type.

    :raises ConfigError: an unknown type, or values that don't fill whole blocks
    """
    if name not in _BLOCKS:
        return num_values * item_bytes(name, field=field)
    block, block_bytes = _BLOCKS[name]
    if num_values % block:
        raise ConfigError(f"{field}: {num_values} values can't be kept in {name}, which takes {block} at a time")
    return num_values // block * block_bytes


def head_bytes(name: str, num_values: int, *, field: str) -> int:
    """Bytes of one head's key or value of one token, with the scales that some types keep per head.

    ``nvfp4``: two values a byte and an fp8 scale per 16; ``..._per_token_head``: an f32 scale (vLLM).

    :raises ConfigError: an unknown type
    """
    if name == "nvfp4":
        return num_values // 2 + num_values // 16
    if name.endswith("_per_token_head"):
        return num_values * item_bytes(name.removesuffix("_per_token_head"), field=field) + 4
    return num_values * item_bytes(name, field=field)
