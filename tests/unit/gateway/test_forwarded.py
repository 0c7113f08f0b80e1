from __future__ import annotations

import pytest

from ullage.access.client_address import ClientAddresses, parse_networks
from ullage.gateway.forwarded import ForwardedHeaders

SAID = [
    (b"x-forwarded-for", b"192.0.2.1"),
    (b"x-forwarded-for", b"192.0.2.2"),
    (b"forwarded", b"for=192.0.2.1"),
    (b"x-other", b"1"),
]


def of(client, trusted="10.0.0.0/8, fd00::/8"):
    return ForwardedHeaders(parse_networks(trusted, "")).of({"client": client, "headers": SAID})


@pytest.mark.parametrize("address", ["198.51.100.7", "2001:db8::7"])
def test_what_a_client_says_of_its_own_address_is_not_passed_on(address):
    assert of((address, 1)) == [(b"x-forwarded-for", address.encode())]


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_what_a_trusted_proxy_says_is_kept_and_its_own_address_appended(address):
    assert of((address, 1)) == [
        (b"forwarded", b"for=192.0.2.1"),
        (b"x-forwarded-for", b"192.0.2.1, 192.0.2.2, " + address.encode()),
    ]


def test_a_client_without_an_address_is_nobody_to_the_replica():
    headers = of(None)
    replica = ClientAddresses(None, parse_networks("127.0.0.1", ""))
    assert replica.of({"client": ("127.0.0.1", 1), "headers": headers}) is None
