"""Where a request comes from, and whether that address may come in.

``X-Forwarded-For`` is believed only as far as trusted proxies wrote it: each proxy appends the address it was called
from, so the list is read from its end, and the first address that is no trusted proxy is the client. Whatever stands
before it was sent by that client, who may have written anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from ullage.base.errors import ConfigError, PermissionDeniedError

Address = IPv4Address | IPv6Address
Networks = tuple[IPv4Network | IPv6Network, ...]

FORWARDED_HEADER = b"x-forwarded-for"
MAX_PROXIES = 32
"""More entries than that are looked at by nobody."""


def parse_networks(text: str, setting: str) -> Networks:
    """
    :param text: like ``10.0.0.0/8, 2001:db8::/32, 192.0.2.7``
    :param setting: its name, for the error
    :raises ConfigError: not a network, or bits are set beyond its length
    """
    networks: list[IPv4Network | IPv6Network] = []
    for part in text.split(","):
        try:
            networks.append(ip_network(part.strip()))
        except ValueError as error:
            hint = "write networks like 10.0.0.0/8,2001:db8::/32"
            raise ConfigError(f"{setting}: {part.strip()!r} is no network: {error}", hint=hint) from None
    return tuple(networks)


class ClientAddresses:
    """
    :param allowed: who may come in; None: everybody
    :param trusted_proxies: whose ``X-Forwarded-For`` counts
    """

    def __init__(self, allowed: Networks | None, trusted_proxies: Networks) -> None:
        self._allowed = allowed
        self._trusted = trusted_proxies

    def of(self, scope: Mapping[str, Any]) -> Address | None:
        """The client's address; None where it can't be known.

        :param scope: of ASGI; ``client`` is the other end of the connection
        """
        address = _parse((scope.get("client") or ("",))[0])
        if address is None or not _lies_in(address, self._trusted):
            return address
        for entry in _forwarded(scope["headers"]):
            address = _parse(entry)
            if address is None or not _lies_in(address, self._trusted):
                return address
        return address

    def check(self, address: Address | None) -> None:
        """:raises PermissionDeniedError: it isn't one of those that may come in"""
        if self._allowed is not None and (address is None or not _lies_in(address, self._allowed)):
            raise PermissionDeniedError("this address may not use this server")


def client_addresses(allowed: str | None, trusted_proxies: str | None) -> ClientAddresses:
    """From the settings.

    :raises ConfigError: what is no network
    """
    return ClientAddresses(
        None if allowed is None else parse_networks(allowed, "allowed_clients"),
        () if trusted_proxies is None else parse_networks(trusted_proxies, "trusted_proxies"),
    )


def _forwarded(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The entries of all such headers, the last one first."""
    values = [value.decode("latin-1") for name, value in headers if name == FORWARDED_HEADER]
    if not values:
        return []
    return [entry.strip() for entry in ",".join(values).rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]][::-1]


def _parse(text: str) -> Address | None:
    """Some proxies add the port. An IPv4 address in IPv6's clothes is the IPv4 address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _lies_in(address: Address, networks: Networks) -> bool:
    return any(address in network for network in networks)
