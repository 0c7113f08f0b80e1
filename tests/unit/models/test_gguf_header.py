"""The header parser against damage: whatever the bytes, the answer is a header or a ``ModelFileError``."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model_fixtures import GGML_TYPE_NUMBERS, gguf_bytes, gguf_metadata, gguf_tensors, tiny_model

from ullage.base.errors import ModelFileError
from ullage.models.ggml_types import GGML_TYPES
from ullage.models.gguf_file import GGUFFile
from ullage.models.gguf_header import read_header

PATH = Path("tiny.gguf")
F32 = GGML_TYPE_NUMBERS["F32"]
SMALL_TENSOR = (F32, (2, 3), bytes(24))


def read(metadata=None, tensors=None, **layout):
    return read_header(PATH, gguf_bytes(metadata or {}, {"t": SMALL_TENSOR} if tensors is None else tensors, **layout))


@pytest.fixture(scope="module")
def whole_file() -> bytes:
    model = tiny_model("llama", num_layers=1)
    return gguf_bytes(gguf_metadata(model.spec), gguf_tensors(model, "Q8_0"))


def open_and_read_everything(path: Path) -> None:
    model = GGUFFile(path)
    for name in model.tensor_names():
        model.read_tensor(name)
    model.close()


@pytest.mark.parametrize("version", [2, 3])
def test_values_and_tensors_come_back_as_written(version):
    values = {"i": 7, "f": 0.1, "b": True, "s": "天", "ss": ["a", ""], "ii": [1, 2], "ff": [0.5], "bb": [True, False]}
    header = read(values, version=version)
    assert {key: header.metadata[key] for key in ("i", "f", "b", "s", "ss")} == {
        key: values[key] for key in ("i", "f", "b", "s", "ss")
    }
    for key, dtype in (("ii", np.uint32), ("ff", np.float32), ("bb", np.bool_)):
        assert header.metadata[key].dtype == dtype
        assert header.metadata[key].tolist() == values[key]
    tensor = header.tensors["t"]
    assert (tensor.shape, tensor.type.name, tensor.num_bytes) == ((2, 3), "F32", 24)
    assert tensor.start % 32 == 0


def test_a_float32_comes_back_as_the_decimal_its_writer_meant():
    assert read({"eps": 1e-6}).metadata["eps"] == 1e-6


def test_the_alignment_key_moves_the_tensor_data():
    header = read({"general.alignment": 256}, alignment=256)
    assert header.tensors["t"].start % 256 == 0


@pytest.mark.parametrize(
    ("start", "complaint"),
    [
        (b"GGML" + struct.pack("<IQQ", 3, 0, 0), "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "1152921504606846976 tensors can't fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "1152921504606846976 metadata keys can't fit"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(32), "9223372036854775808 bytes can't fit"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + bytes(32), "isn't UTF-8"),
        (b"GG", "truncated"),
        (b"GGUF\3\0\0\0\0", "truncated"),
    ],
)
def test_a_damaged_start_is_named(start, complaint):
    with pytest.raises(ModelFileError, match=complaint) as error:
        read_header(PATH, start)
    assert str(error.value).startswith("tiny.gguf")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (struct.pack("<I", 13), "value type 13"),
        (struct.pack("<IIQ", 9, 4, 2**60), "1152921504606846976 values of 'k'"),
        (struct.pack("<IIQ", 9, 8, 2**60), "1152921504606846976 texts of 'k'"),
        (struct.pack("<IIQQ", 9, 8, 1, 2**62), "within the texts of 'k'"),
        (struct.pack("<IIQQ", 9, 8, 2, 60), "within the texts of 'k'"),
        (struct.pack("<IIQQ", 9, 8, 1, 1) + b"\xff", "isn't UTF-8"),
        (struct.pack("<IIQ", 9, 9, 1), "value type 9"),
        (struct.pack("<IB", 7, 2), "truth value"),
    ],
)
def test_a_damaged_value_is_named(value, complaint):
    data = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + value + bytes(64)
    with pytest.raises(ModelFileError, match=complaint):
        read_header(PATH, data)


def test_a_key_that_stands_twice_is_refused():
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 1)
    with pytest.raises(ModelFileError, match="key 'k' stands twice"):
        read_header(PATH, b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + key + key)


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_an_impossible_alignment_is_refused(alignment):
    with pytest.raises(ModelFileError, match="power of two"):
        read({"general.alignment": alignment})


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        ((77, (2, 3), bytes(24)), "unknown type 77"),
        ((F32, (), bytes(24)), "0 dimensions"),
        ((F32, (1, 1, 1, 1, 6), bytes(24)), "5 dimensions"),
        ((F32, (0, 3), bytes(24)), "can't have rows|truncated"),
        ((GGML_TYPE_NUMBERS["Q8_0"], (1, 33), bytes(64)), "rows of 33"),
        ((F32, (2**40, 2**40), bytes(24)), "truncated"),
        ((F32, (2, 300), bytes(24)), "truncated"),
    ],
)
def test_an_impossible_tensor_is_refused(tensor, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        read(tensors={"t": tensor})


def table_entry(name: bytes, offset: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 8, F32, offset)


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        (table_entry(b"a", 0) + table_entry(b"a", 32), "'a' stands twice"),
        (table_entry(b"a", 0) + table_entry(b"b", 0), "'b' overlaps"),
        (table_entry(b"a", 0) + table_entry(b"b", 40), "'b' isn't aligned"),
        (table_entry(b"a", 0) + table_entry(b"b", 2**63), "'b' ends at byte"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(entries, complaint):
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entries
    with pytest.raises(ModelFileError, match=complaint):
        read_header(PATH, head + bytes(-len(head) % 32) + bytes(96))


def test_a_file_cut_anywhere_in_its_header_is_refused(whole_file):
    for length in range(2000):
        with pytest.raises(ModelFileError):
            read_header(PATH, whole_file[:length])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_bytes_never_cause_anything_but_a_model_file_error(whole_file, tmp_path_factory, data):
    damaged = bytearray(whole_file)
    for _ in range(data.draw(st.integers(1, 4))):
        # Mostly in the header (the first 2 KB), where it hurts.
        position = data.draw(st.one_of(st.integers(0, 2000), st.integers(0, len(damaged) - 1)))
        damaged[position] = data.draw(st.one_of(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]), st.integers(0, 255)))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        open_and_read_everything(path)
    except ModelFileError as error:
        assert str(path) in error.message  # noqa: PT017 (no error at all is fine too)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_a_header_or_a_model_file_error(tail):
    try:
        read_header(PATH, b"GGUF\x03\0\0\0" + tail)
    except ModelFileError as error:
        assert error.message.startswith("tiny.gguf")  # noqa: PT017


def test_the_type_table_agrees_with_the_gguf_library():
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    for number, ours in GGML_TYPES.items():
        theirs = GGMLQuantizationType(number)
        assert (ours.name, ours.block_elements, ours.block_bytes) == (theirs.name, *GGML_QUANT_SIZES[theirs])


def test_every_type_called_readable_can_be_dequantised():
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    for number, ours in GGML_TYPES.items():
        if ours.readable:
            values = dequantize(np.zeros(2 * ours.block_bytes, np.uint8), GGMLQuantizationType(number))
            assert values.shape == (2 * ours.block_elements,)
