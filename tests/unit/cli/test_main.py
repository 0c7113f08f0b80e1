"""What a person sees of an error, and the exit code that a script sees."""

from __future__ import annotations

import click
import pytest

from ullage import __version__
from ullage.base.errors import ConfigError, EngineError, ModelFileError, UllageError
from ullage.cli import commands
from ullage.cli import main as cli


@pytest.fixture
def failing(monkeypatch):
    """Makes ``ullage list`` raise what the test gives."""

    def make(error: BaseException) -> None:
        def fail() -> None:
            raise error

        command = click.Command("list", callback=fail)
        monkeypatch.setattr(commands.LateCommands, "get_command", lambda self, ctx, name: command)

    return make


def test_version(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"ullage {__version__}\n"


def test_help_names_every_command(capsys):
    assert cli.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in commands.COMMANDS)


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_has_help_with_its_own_first_line(name, capsys):
    assert cli.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: ullage {name}" in shown


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (ConfigError("too small", hint="use 2"), 2, "error: too small\nhint: use 2\n"),
        (ModelFileError("truncated"), 2, "error: truncated\n"),
        (UllageError("no network"), 1, "error: no network\n"),
        (EngineError("died"), 1, "error: died\n"),
        (
            PermissionError(13, "Permission denied", "/x"),
            1,
            "error: [Errno 13] Permission denied: '/x'\nhint: the system",
        ),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
    ],
)
def test_an_error_is_a_line_a_hint_and_a_code(failing, capsys, error, code, shown):
    failing(error)
    assert cli.run(["list"]) == code
    assert capsys.readouterr().err.startswith(shown)


@pytest.mark.parametrize("error", [BufferError("in use"), EngineError("ended"), OSError("closed")])
def test_what_goes_wrong_while_a_command_is_interrupted_is_the_interrupt(failing, capsys, error):
    error.__context__ = ValueError()
    error.__context__.__context__ = KeyboardInterrupt()
    failing(error)
    assert cli.run(["list"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_our_own_bug_is_told_in_one_line_and_traced_only_on_request(failing, capsys, monkeypatch):
    failing(ZeroDivisionError("division by zero"))
    assert cli.run(["list"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ZeroDivisionError: division by zero\nhint: this is a bug")

    assert cli.run(["--debug", "list"]) == 1
    assert "Traceback" in capsys.readouterr().err

    monkeypatch.setenv("ULLAGE_DEBUG", "1")
    assert cli.run(["list"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["lst"], "error: No such command 'lst'.\nhint: see: ullage --help\n"),
        (["pull"], "error: Missing argument 'NAME'.\nhint: see: ullage pull --help\n"),
        (["serve", "x", "--kv-memroy", "1"], "hint: see: ullage serve --help\n"),
    ],
)
def test_a_usage_error_points_to_the_help(arguments, shown, capsys):
    assert cli.run(arguments) == 2
    assert capsys.readouterr().err.endswith(shown)
