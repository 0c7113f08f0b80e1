"""``ullage accuracy`` on a tiny model with random weights."""

from __future__ import annotations

import json

import pytest
from tests.model_fixtures import tiny_model, write_gguf

from ullage.cli import main as cli

SMALL = ["--tokens", "40", "--piece-tokens", "20", "--batch-size", "4", "--chunk-tokens", "8", "--threads", "2"]


@pytest.fixture
def model(tmp_path) -> str:
    return str(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama")))


def test_json_and_the_result_file_have_a_row_for_each_way(model, tmp_path, capsys, monkeypatch):
    arguments = [
        "bench",
        "accuracy",
        model,
        *SMALL,
        "--weight-type",
        "int8",
        "--format",
        "json",
        "--output",
        str(tmp_path / "r"),
    ]
    monkeypatch.setattr("sys.argv", ["/bin/ullage", *arguments])
    assert cli.run(arguments) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert {result["feeding"] for result in record["results"]} == {
        "one row",
        "batch of 4",
        "prefill by 8",
    }
    assert {result["formats"]["weight_type"] for result in record["results"]} == {"int8"}
    assert record["command"].startswith("ullage bench accuracy tiny.gguf --tokens 40")
    assert str(tmp_path) not in record["command"]
    (file,) = (tmp_path / "r").iterdir()
    assert json.loads(file.read_text("utf-8"))["results"] == record["results"]
    assert str(file) in shown.err


@pytest.mark.parametrize(("shown_as", "start"), [("table", "tiny.gguf: "), ("md", "tiny.gguf: ")])
def test_a_table_has_a_row_for_each_way(model, capsys, shown_as, start):
    assert cli.run(["bench", "accuracy", model, *SMALL, "--weight-type", "bf16", "--format", shown_as]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(start)
    assert all(part in shown for part in ("one row", "batch", "prefill", "bf16", "perplexity"))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--text", "nowhere"], "error: can't read the text nowhere: No such file or directory\n"),
        (["--tokens", "10000000"], "too few for 10000000\nhint: give a longer --text, or fewer --tokens\n"),
        (["--piece-tokens", "300"], "error: pieces of 300 tokens exceed the 256"),
        (["--tokens", "20", "--batch-size", "21"], "error: a batch of 21 needs as many tokens, there are 20\n"),
        (["--peers", "nowhere"], "error: nowhere has no llamacpp/bin/python\n"),
        (["--weight-type", "int7"], "hint: see: ullage bench accuracy --help\n"),
        (["--tokens", "1"], "hint: see: ullage bench accuracy --help\n"),
    ],
)
def test_bad_input_is_a_clear_error(model, capsys, arguments, shown):
    assert cli.run(["bench", "accuracy", model, *SMALL, *arguments]) == 2
    assert shown in capsys.readouterr().err


def test_a_model_that_is_not_there_is_a_clear_error(capsys):
    assert cli.run(["bench", "accuracy", "nowhere.gguf"]) == 2
    assert "nowhere.gguf" in capsys.readouterr().err
