"""The file of API keys."""

from __future__ import annotations

import pytest

from ullage.access.keys import KeyStore
from ullage.base.errors import AuthenticationError, ConfigError


@pytest.fixture
def store(tmp_path):
    return KeyStore(tmp_path / "keys.db")


def test_a_key_is_known_again_by_its_text_also_to_another_process_s_store(store, tmp_path):
    key, text = store.create("acme", "ci", ("inference",))
    assert KeyStore(tmp_path / "keys.db").check(text) == key
    assert store.list() == [key]


def test_only_its_owner_may_read_the_file_and_it_holds_no_secret(store, tmp_path):
    _, text = store.create("acme", "ci", ("inference",))
    files = list(tmp_path.iterdir())
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert not any(text.rpartition("-")[2].encode() in file.read_bytes() for file in files)


def test_expired_revoked_and_nearly_right_keys_are_refused_in_one_text(store):
    _, expired = store.create("acme", "", ("inference",), expires_at=1.0)
    key, revoked = store.create("acme", "", ("inference",))
    _, valid = store.create("acme", "", ("inference",))
    store.revoke(key.id)
    texts = set()
    for text in (expired, revoked, valid[:-1], valid + "0", valid.upper(), "", valid[:-1] + "g"):
        with pytest.raises(AuthenticationError) as refused:
            store.check(text)
        texts.add(str(refused.value))
    assert len(texts) == 1


def test_what_makes_no_sense_is_refused(store):
    with pytest.raises(ConfigError):
        store.create("acme", "", ("everything",))
    with pytest.raises(ConfigError):
        store.revoke("nobody")
