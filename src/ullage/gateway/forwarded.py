"""The client's address as replicas are told it: what a proxy appends to ``X-Forwarded-For``."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from ullage.access.client_address import FORWARDED_HEADER, Networks, parse_networks

OTHER_HEADERS = frozenset({b"forwarded", b"x-real-ip"})
"""Say the same to other servers."""
UNKNOWN = b"unknown"
"""RFC 7239, section 6.2. Nobody's address, so no list of addresses lets it in."""


class ForwardedHeaders:
    """:param trusted: proxies before the gateway; what anyone else says of a client's address goes no further"""

    def __init__(self, trusted: Networks) -> None:
        self._trusted = trusted

    def of(self, scope: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
        """The headers for the replica. They stand in the place of ``NAMES`` in the client's request.

        :param scope: of ASGI; ``client`` is the other end of the connection
        """
        client = scope.get("client")
        if client is None:
            return [(FORWARDED_HEADER, UNKNOWN)]
        address = ip_address(client[0])
        given = scope["headers"] if any(address in network for network in self._trusted) else []
        entries = [value for name, value in given if name == FORWARDED_HEADER]
        others = [(name, value) for name, value in given if name in OTHER_HEADERS]
        return [*others, (FORWARDED_HEADER, b", ".join([*entries, str(address).encode()]))]


NAMES = OTHER_HEADERS | {FORWARDED_HEADER}


def parse_trusted(text: str | None) -> Networks:
    """Of the setting ``trusted_proxies``.

    :raises ConfigError: what is no network
    """
    return () if text is None else parse_networks(text, "trusted_proxies")
