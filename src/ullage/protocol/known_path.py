"""The address of a request as logs may tell it."""

from __future__ import annotations

from starlette.routing import Match
from starlette.types import Scope

UNKNOWN_PATH = "an unknown address"


def known_path(scope: Scope) -> str:
    """The address as the app writes it. As the client wrote it, it may hold anything: a key is sometimes among it."""
    for route in scope["app"].routes:
        if route.matches(scope)[0] is not Match.NONE:
            return str(route.path_format)
    return UNKNOWN_PATH
