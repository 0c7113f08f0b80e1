"""The file of API keys."""

from __future__ import annotations

import hmac
import sqlite3
from contextlib import closing

import pytest

from ullage.access.keys import KeyStore
from ullage.base.errors import AccessStoreError, AuthenticationError, ConfigError


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


def test_a_key_opens_the_models_it_names_or_all(store):
    limited, text = store.create("acme", "", ("inference",), models=("tiny", "a,b"))
    free, _ = store.create("acme", "", ("inference",))
    assert store.check(text) == limited
    assert [limited.may_use(name) for name in ("tiny", "a,b", "a", "")] == [True, True, False, False]
    assert free.may_use("anything")
    with pytest.raises(ConfigError, match="name"):
        store.create("acme", "", ("inference",), models=("",))


def test_a_file_from_before_keys_had_models_is_taken_over(tmp_path):
    path = tmp_path / "keys.db"
    _, text = KeyStore(path).create("acme", "", ("inference",))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE api_keys DROP COLUMN models")
    store = KeyStore(path)
    assert store.check(text).models == ()
    _, limited = store.create("acme", "", ("inference",), models=("tiny",))
    assert KeyStore(path).check(limited).models == ("tiny",)


def test_unknown_and_malformed_keys_cost_the_work_of_wrong_ones(store, monkeypatch):
    _, text = store.create("acme", "", ("inference",))
    compared = []

    def compare(left, right):
        compared.append((len(left), len(right)))
        return real_compare(left, right)

    real_compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for wrong in (text[:-1] + "g", text[:7] + "0" * 16 + text[23:], "x", ""):
        with pytest.raises(AuthenticationError):
            store.check(wrong)
    store.check(text)
    assert compared == [(32, 32)] * 5


@pytest.fixture
def reader(store):
    with closing(store.reader()) as reader:
        yield reader


def test_an_open_reader_sees_at_once_what_others_write(store, reader):
    with pytest.raises(AuthenticationError):
        reader.check("ullage-0")
    key, text = store.create("acme", "", ("inference",))
    assert reader.check(text) == key
    store.revoke(key.id)
    with pytest.raises(AuthenticationError):
        reader.check(text)


def test_a_file_that_was_replaced_lets_in_its_own_keys_only(store, reader, tmp_path):
    _, old = store.create("acme", "", ("inference",))
    reader.check(old)
    _, new = KeyStore(tmp_path / "other.db").create("acme", "", ("inference",))
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"keys.db{suffix}").unlink(missing_ok=True)
    (tmp_path / "other.db").rename(tmp_path / "keys.db")
    reader.check(new)
    with pytest.raises(AuthenticationError):
        reader.check(old)


def test_a_file_that_is_gone_lets_nobody_in_and_is_not_made_anew(store, reader, tmp_path):
    _, text = store.create("acme", "", ("inference",))
    reader.check(text)
    (tmp_path / "keys.db").rename(tmp_path / "away.db")
    for _ in range(2):
        with pytest.raises(AccessStoreError):
            reader.check(text)
    assert not (tmp_path / "keys.db").exists()
    (tmp_path / "away.db").rename(tmp_path / "keys.db")
    reader.check(text)
