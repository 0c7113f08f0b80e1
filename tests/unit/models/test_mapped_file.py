from __future__ import annotations

import numpy as np
import pytest

from ullage.base.errors import ModelFileError
from ullage.models.mapped_file import MappedFile


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(8, dtype=np.float32).tobytes())
    opened = MappedFile(path)
    yield opened
    opened.close()


def as_floats(stored):
    return stored.view(np.float32)


def test_values_are_read_from_where_they_start(file):
    values = file.read_values("numbers", 8, 3, as_floats, block_bytes=4)
    np.testing.assert_array_equal(values, [2, 3, 4])


def test_closing_while_a_view_lives_is_harmless(file):
    view = memoryview(file.data)
    file.close()
    file.close()
    assert bytes(view[4:8]) == np.float32(1).tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_refused_with_its_tensor(tmp_path, bad):
    path = tmp_path / "numbers"
    path.write_bytes(np.array([1, bad, 3], dtype=np.float32).tobytes())
    with pytest.raises(ModelFileError, match="tensor weights holds NaN or infinity"):
        MappedFile(path).read_values("weights", 0, 3, as_floats, block_bytes=4)
