from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model_fixtures import safetensors_bytes, safetensors_file

from ullage.base.errors import ModelFileError
from ullage.models.safetensors_file import SafetensorsFile, open_shards

VALUES = np.array([[1.0, -2.0, 0.5], [0.0, 3.25, -1.5]], np.float32)


def entry(dtype="F32", shape=(2, 3), offsets=(0, 24)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refused(tmp_path, content, complaint):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=complaint) as error:
        SafetensorsFile(path)
    assert "bad.safetensors" in error.value.message


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_every_float_dtype_comes_back_as_float32(tmp_path, dtype):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({"odd": VALUES[:, :1], "t": VALUES}, dtype))
    file = SafetensorsFile(path)
    values = file.read("t")
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, VALUES)
    values[:] = 9
    np.testing.assert_array_equal(file.read("t"), VALUES)
    file.close()


def test_a_scalar_and_an_empty_tensor_are_read(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({"s": np.float32(3.0).reshape(()), "e": np.empty((0, 4), np.float32)}))
    file = SafetensorsFile(path)
    assert file.read("s") == 3.0
    assert file.read("e").shape == (0, 4)
    file.close()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "empty"),
        (b"\1\0\0", "truncated"),
        (struct.pack("<Q", 2**60) + b"{}", "a header of 1152921504606846976 bytes can't fit"),
        (struct.pack("<Q", 3) + b"{}", "can't fit"),
        (struct.pack("<Q", 2) + b"[]", "must be a JSON object"),
        (struct.pack("<Q", 2) + b"\xff\xff", "isn't valid JSON"),
        (struct.pack("<Q", 20_000) + b"[" * 20_000, "isn't valid JSON"),
        (struct.pack("<Q", 18) + b'{"a":1,"a":2}     ', "a key stands twice"),
    ],
)
def test_a_damaged_header_is_named(tmp_path, content, complaint):
    refused(tmp_path, content, complaint)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({"t": entry("F99")}, "unknown dtype 'F99'"),
        ({"t": 3}, "unknown dtype"),
        ({"t": entry(shape=(2, 4))}, "24 bytes don't hold"),
        ({"t": entry(shape=(-2, -3))}, "no proper shape"),
        ({"t": entry(shape=(2.0, 3))}, "no proper shape"),
        ({"t": entry(shape=(2**40, 2**40))}, "don't hold"),
        ({"t": entry(offsets=(0,))}, "no proper shape"),
        ({"t": entry(offsets=(24, 0))}, "-24 bytes"),
        ({"t": entry(offsets=(2**60, 2**60 + 24))}, "leaves a hole"),
        ({"t": entry(offsets=(4, 28))}, "leaves a hole"),
        ({"t": entry(), "u": entry()}, "'u' overlaps"),
        ({"t": entry(shape=(2, 2), offsets=(0, 16))}, "the tensors end at byte"),
        ({"t": entry(), "u": entry(offsets=(24, 48))}, "truncated"),
    ],
)
def test_a_table_that_does_not_fit_the_file_is_refused(tmp_path, header, complaint):
    refused(tmp_path, safetensors_file(header, VALUES.tobytes()), complaint)


def test_a_dtype_that_is_no_float_is_named(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_file({"t": entry("F8_E4M3", (24,))}, bytes(24)))
    file = SafetensorsFile(path)
    with pytest.raises(ModelFileError, match="t has dtype F8_E4M3"):
        file.check_readable("t")
    file.close()


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_nan_is_found_when_read(tmp_path, dtype):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({"fine": VALUES, "t": np.where(VALUES == 0, np.nan, VALUES)}, dtype))
    file = SafetensorsFile(path)
    file.read("fine")
    with pytest.raises(ModelFileError, match="tensor t holds NaN"):
        file.read("t")
    file.close()


def test_a_double_too_large_for_float32_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_file({"t": entry("F64", (1,), (0, 8))}, struct.pack("<d", 1e300)))
    file = SafetensorsFile(path)
    with pytest.raises(ModelFileError, match="infinity"):
        file.read("t")
    file.close()


def write_shards(folder, weight_map, present=("one.safetensors", "two.safetensors")):
    for shard in present:
        (folder / shard).write_bytes(safetensors_bytes({shard[0]: VALUES}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_found_through_the_index(tmp_path):
    write_shards(tmp_path, {"o": "one.safetensors", "t": "two.safetensors"})
    files = open_shards(tmp_path)
    assert {name: file.path.name for name, file in files.items()} == {"o": "one.safetensors", "t": "two.safetensors"}
    for file in files.values():
        file.close()


@pytest.mark.parametrize(
    ("weight_map", "complaint"),
    [
        ({"o": "one.safetensors", "x": "six.safetensors"}, "1 of 2 shards are missing, first six.safetensors"),
        ({"o": "two.safetensors"}, "tensor 'o' should be in two.safetensors, but isn't"),
        ({"o": "../one.safetensors"}, "isn't the name of a file"),
        ({"o": "/etc/hostname"}, "isn't the name of a file"),
        ({"o": ""}, "isn't the name of a file|missing"),
        ({"o": 3}, "isn't the name of a file"),
        ({}, "weight_map is missing"),
        (["one.safetensors"], "weight_map is missing"),
    ],
)
def test_an_index_that_disagrees_with_its_shards_is_refused(tmp_path, weight_map, complaint):
    write_shards(tmp_path, weight_map)
    with pytest.raises(ModelFileError, match=complaint):
        open_shards(tmp_path)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        open_shards(tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_or_missing_bytes_never_cause_anything_but_a_model_file_error(tmp_path_factory, data):
    whole = safetensors_bytes({"a": VALUES, "b": VALUES[0], "c": VALUES}, "BF16")
    damaged = bytearray(whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))])
    for _ in range(data.draw(st.integers(0, 4)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(damaged)
    try:
        file = SafetensorsFile(path)
        for name in file.tensors:
            file.check_readable(name)
            file.read(name)
        file.close()
    except ModelFileError as error:
        assert str(path) in error.message  # noqa: PT017 (no error at all is fine too)
