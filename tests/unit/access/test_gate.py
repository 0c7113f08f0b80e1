"""Who may come in."""

from __future__ import annotations

import asyncio

import pytest

from ullage.access.gate import Gate
from ullage.access.keys import KeyStore
from ullage.base.errors import AccessStoreError, AuthenticationError, PermissionDeniedError


@pytest.fixture
def store(tmp_path):
    return KeyStore(tmp_path / "keys.db")


@pytest.fixture
def gate(store):
    gate = Gate(store)
    yield gate
    gate.close()


def enter(gate, path, *values):
    return asyncio.run(gate.enter(path, [(b"authorization", value.encode()) for value in values]))


def test_liveness_alone_is_open(gate):
    assert enter(gate, "/health/live") is None


@pytest.mark.parametrize("path", ["/v1/models", "//v1/models", "/V1/models", "/metrics", "/health/ready", "/nothing"])
def test_every_other_address_needs_a_key(gate, path):
    with pytest.raises(AuthenticationError):
        enter(gate, path)


def test_the_scheme_may_be_spelled_in_any_case(gate, store):
    key, text = store.create("acme", "", ("inference",))
    assert [enter(gate, "/v1/models", f"{scheme} {text}") for scheme in ("Bearer", "bearer", "BEARER")] == [key] * 3


def test_a_malformed_header_lets_nobody_in_and_is_not_echoed(gate, store):
    _, text = store.create("acme", "", ("inference",))
    for values in ([text], [f"Basic {text}"], [f"Bearer {text} x"], [f"Bearer {text}"] * 2, ["Bearer"]):
        with pytest.raises(AuthenticationError) as refused:
            enter(gate, "/v1/models", *values)
        assert text not in str(refused.value)


@pytest.mark.parametrize("path", ["/admin/reload", "//Admin/reload", "/metrics"])
def test_a_key_opens_its_route_groups_only(gate, store, path):
    _, text = store.create("acme", "", ("inference",))
    with pytest.raises(PermissionDeniedError):
        enter(gate, path, f"Bearer {text}")


def test_a_store_that_is_down_lets_nobody_in(gate, store, tmp_path):
    _, text = store.create("acme", "", ("inference",))
    (tmp_path / "keys.db").write_bytes(b"not a database" * 100)
    with pytest.raises(AccessStoreError):
        enter(gate, "/v1/models", f"Bearer {text}")


def test_whose_key_it_was_is_told_also_where_it_does_not_open(gate, store):
    key, text = store.create("acme", "", ("inference",))
    told = []
    with pytest.raises(PermissionDeniedError):
        asyncio.run(gate.enter("/metrics", [(b"authorization", f"Bearer {text}".encode())], told.append))
    assert told == [key]
