from __future__ import annotations

import pytest

from ullage.base.errors import InvalidRequestError
from ullage.service.deadline import timeout_seconds


def test_the_shortest_of_those_given_holds():
    assert timeout_seconds({}, None, None) is None
    assert timeout_seconds({}, None, 30.0) == 30.0
    assert timeout_seconds({}, 90.0, 30.0) == 30.0
    assert timeout_seconds({"x-request-timeout": "2.5"}, 90.0, 30.0) == 2.5
    assert timeout_seconds({"x-request-timeout": "50"}, 20.0, None) == 20.0


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1s"])
def test_a_header_that_is_no_time_is_refused(text):
    with pytest.raises(InvalidRequestError, match="x-request-timeout must be a number of seconds above 0"):
        timeout_seconds({"x-request-timeout": text}, None, None)
