"""``ullage pull`` and ``ullage list``, on a store in a temporary folder."""

from __future__ import annotations

import pytest

from ullage.cli import store
from ullage.cli.main import run
from ullage.models.catalogue import catalogue_model
from ullage.models.store import PullProgress, _write_manifest


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setenv("ULLAGE_HOME", str(tmp_path))
    return tmp_path / "models"


def pull_with_phases(*phases):
    def pull(name, progress):
        for phase in phases:
            progress(PullProgress(phase, 1, 2))
        return f"/store/{name}/file.gguf"

    return pull


def test_list_shows_where_the_store_is_and_what_can_be_pulled(empty_store, capsys):
    assert run(["list"]) == 0
    shown = capsys.readouterr().out
    assert f"no models in {empty_store}" in shown
    assert "ullage pull smollm2" in shown


def test_list_shows_a_model_with_its_licence(empty_store, capsys):
    (empty_store / "gemma3-270m").mkdir(parents=True)
    _write_manifest(empty_store / "gemma3-270m", catalogue_model("gemma3-270m"))
    assert run(["list"]) == 0
    shown = capsys.readouterr().out
    assert "241.4 MiB   Gemma Terms of Use" in shown
    assert "ullage pull gemma3-270m" not in shown


def test_pull_says_what_it_did_and_where_the_model_is(monkeypatch, capsys):
    monkeypatch.setattr(store, "pull_model", pull_with_phases("downloading", "downloading", "done"))
    assert run(["pull", "smollm2"]) == 0
    assert capsys.readouterr().err == (
        "smollm2: downloading\nsmollm2: pulled, digest checked; 93.8 MiB, Apache-2.0\n/store/smollm2/file.gguf\n"
    )


def test_pull_says_when_the_model_was_there(monkeypatch, capsys):
    monkeypatch.setattr(store, "pull_model", pull_with_phases("checking", "present"))
    assert run(["pull", "smollm2"]) == 0
    assert "was there already" in capsys.readouterr().err


def test_pulling_gemma_shows_its_terms_first(monkeypatch, capsys):
    monkeypatch.setattr(store, "pull_model", pull_with_phases("done"))
    assert run(["pull", "gemma3-270m"]) == 0
    first_line = capsys.readouterr().err.splitlines()[0]
    assert "Gemma Terms of Use" in first_line
    assert "ai.google.dev/gemma/terms" in first_line


def test_an_unknown_model_is_refused_with_those_there_are(capsys):
    assert run(["pull", "gpt-5"]) == 2
    assert capsys.readouterr().err.endswith("hint: known are: smollm2, gemma3-270m\n")
