from __future__ import annotations

import pytest

from ullage.protocol.request_id import request_id_of


@pytest.mark.parametrize("given", [b"mine 1", b"x" * 128])
def test_a_short_printable_id_is_taken_over(given):
    assert request_id_of([(b"host", b"a"), (b"x-request-id", given)]) == given.decode()


@pytest.mark.parametrize("given", [b"", b"x" * 129, "鱼".encode(), b"a\tb"])
def test_any_other_becomes_a_fresh_one(given):
    headers = [(b"x-request-id", given)]
    assert request_id_of(headers) != request_id_of(headers) != given.decode()
