"""Where a request comes from."""

from __future__ import annotations

import pytest

from ullage.access.client_address import ClientAddresses, parse_networks
from ullage.base.errors import ConfigError, PermissionDeniedError

PROXIES = parse_networks("10.0.0.0/8, fd00::/8", "trusted_proxies")


def address(peer, *forwarded, trusted=PROXIES):
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    found = ClientAddresses(None, trusted).of({"client": (peer, 1234), "headers": headers})
    return None if found is None else str(found)


def test_the_header_counts_for_nothing_unless_a_trusted_proxy_sent_it():
    assert address("192.0.2.1", "127.0.0.1") == "192.0.2.1"
    assert address("10.1.1.1", "127.0.0.1", trusted=()) == "10.1.1.1"


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["127.0.0.1, 192.0.2.1"], "192.0.2.1"),  # the client wrote the first one
        (["127.0.0.1", "192.0.2.1"], "192.0.2.1"),  # in a header of its own
        (["127.0.0.1, 192.0.2.1, 10.2.2.2"], "192.0.2.1"),  # two proxies
        (["10.3.3.3, 10.2.2.2"], "10.3.3.3"),  # the request began at a proxy
        (["127.0.0.1, nonsense"], None),
        (["127.0.0.1,"], None),
        (["192.0.2.1:5555"], "192.0.2.1"),
        (["[2001:db8::1]:5555"], "2001:db8::1"),
        (["2001:db8::1"], "2001:db8::1"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        ([", ".join(["127.0.0.1"] * 5000 + ["192.0.2.1"])], "192.0.2.1"),
        ([], "10.1.1.1"),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_is_the_client(forwarded, client):
    assert address("10.1.1.1", *forwarded) == client


def test_an_ipv4_address_is_the_same_one_over_ipv6():
    assert address("::ffff:10.1.1.1", "192.0.2.1") == "192.0.2.1"
    assert address("::ffff:192.0.2.1", "127.0.0.1") == "192.0.2.1"


def test_only_listed_networks_may_come_in():
    clients = ClientAddresses(parse_networks("192.0.2.0/24,2001:db8::/32", "allowed_clients"), ())
    for peer in ("192.0.2.9", "::ffff:192.0.2.9", "2001:db8::9"):
        clients.check(clients.of({"client": (peer, 1), "headers": []}))
    for client in (("192.0.3.9", 1), ("::1", 1), ("", 1), None):
        with pytest.raises(PermissionDeniedError):
            clients.check(clients.of({"client": client, "headers": []}))


@pytest.mark.parametrize("text", ["", "10.0.0.0/8,", "10.0.0.1/8", "localhost", "10.0.0.0/33"])
def test_what_is_no_network_is_refused(text):
    with pytest.raises(ConfigError, match="allowed_clients"):
        parse_networks(text, "allowed_clients")
