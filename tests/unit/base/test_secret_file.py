"""Secrets in files."""

from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.base.secret_file import read_secret


def test_the_first_line_is_the_secret(tmp_path):
    (tmp_path / "secret").write_text("sword fish \r\nand a comment\n")
    assert read_secret(tmp_path / "secret") == "sword fish"


@pytest.mark.parametrize("content", [b"", b"\nsecond line", b"marker\xff"])
def test_a_file_without_one_is_refused_and_nothing_of_it_is_told(tmp_path, content):
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_secret(tmp_path / "secret")
    assert "marker" not in str(refused.value)
    assert str(tmp_path / "secret") in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(tmp_path / "none")
