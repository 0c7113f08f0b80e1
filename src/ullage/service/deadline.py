"""How long a request may take, its time in the queue included.

The rule: the server's ``request_timeout_seconds``, the body's ``request_timeout`` and the header ``x-request-timeout``
are all in seconds, and the shortest of those given holds. So a client may ask for less than the server allows, not for
more, and a proxy may set the header without knowing the body. What is no positive number is refused, not ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ullage.base.errors import InvalidRequestError

TIMEOUT_HEADER = "x-request-timeout"


def timeout_seconds(headers: Mapping[str, str], field: float | None, most: float | None) -> float | None:
    """None: no limit.

    :param field: of the body
    :param most: what the server allows
    :raises InvalidRequestError: the header is no number above 0
    """
    given = [seconds for seconds in (field, most) if seconds is not None]
    header = headers.get(TIMEOUT_HEADER)
    if header is not None:
        given.append(_seconds(header))
    return min(given, default=None)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise InvalidRequestError(f"the header {TIMEOUT_HEADER} must be a number of seconds above 0")
    return seconds
