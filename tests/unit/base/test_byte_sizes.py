import pytest

from ullage.base.byte_sizes import format_bytes, parse_bytes
from ullage.base.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("2GB", 2_000_000_000),
        ("2.5kB", 2500),
        ("7 B", 7),
    ],
)
def test_sizes_are_read_with_gib_and_gb_told_apart(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1MiB", "1e9", "64 M", "2g", "1.0001KiB", "inf", "0x10", "6 4MiB", "9" * 5000]
)
def test_what_is_not_plainly_a_size_is_refused(text):
    with pytest.raises(ConfigError):
        parse_bytes(text)


def test_a_bare_letter_is_refused_with_both_ways_to_write_it():
    with pytest.raises(ConfigError) as refused:
        parse_bytes("2g")
    assert refused.value.hint == "write 2GiB for powers of 1024 or 2GB for powers of 1000"


def test_sizes_are_shown_in_powers_of_1024():
    assert [format_bytes(n) for n in (0, 1023, 1536, 98_362_432, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "93.8 MiB",
        "5.0 TiB",
    ]
