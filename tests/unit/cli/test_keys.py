"""``ullage keys``."""

from __future__ import annotations

import json

import pytest

from ullage.cli.main import run


@pytest.fixture
def keys(tmp_path, capsys):
    def call(*arguments):
        code = run(["keys", "--file", str(tmp_path / "keys.db"), *arguments])
        return code, capsys.readouterr().out

    return call


def test_a_key_is_listed_with_all_but_its_secret(keys):
    code, text = keys("create", "--tenant=acme", "--name=ci", "--model=tiny", "--model=other", "--expires-in-days=1")
    assert code == 0
    _, key_id, secret = text.strip().split("-")
    _, listed = keys("list", "--format=json")
    (row,) = json.loads(listed)
    assert (row["id"], row["state"], row["tenant"], row["name"]) == (key_id, "valid", "acme", "ci")
    assert (row["models"], row["route_groups"], row["revoked"]) == (["tiny", "other"], ["inference"], None)
    assert row["created"] < row["expires"]
    _, table = keys("list")
    assert secret not in listed + table
    header, _, line = [line for line in table.splitlines() if line.strip()]
    assert header.split()[:4] == ["id", "state", "tenant", "name"]
    assert line.split()[:4] == [key_id, "valid", "acme", "ci"]
    assert "tiny, other" in line


def test_a_revoked_key_is_told_as_such_and_no_name_moves_the_cursor(keys):
    keys("create", "--tenant=acme", "--name=[red]\x1b[2Jx[/red]\n")
    (row,) = json.loads(keys("list", "--format=json")[1])
    assert keys("revoke", row["id"])[0] == 0
    table = keys("list")[1]
    assert "revoked" in table
    assert "\x1b" not in table
    assert "[red]" in table


def test_no_keys_are_an_empty_list(keys):
    assert json.loads(keys("list", "--format=json")[1]) == []
    assert keys("list")[0] == 0


def test_a_model_needs_a_name(keys):
    assert keys("create", "--tenant=acme", "--model=")[0] == 2
