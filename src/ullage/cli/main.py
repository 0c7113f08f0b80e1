"""The command line's front door: finds the command, and turns every error into two lines and an exit code.

Exit codes: 0 done, 1 it failed, 2 the user can mend it (usage, settings, model file, plan, request), 130 interrupted.
Commands are imported when they are asked for, so that ``ullage --help`` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from ullage import __version__
from ullage.base.errors import ConfigError, ModelFileError, PlanError, RequestError, UllageError

COMMANDS = {
    "pull": ("ullage.cli.store:pull", "Fetch a demo model into the model store."),
    "list": ("ullage.cli.store:list_", "List the models in the store, and those that can be pulled."),
    "serve": ("ullage.cli.serve:serve", "Serve a model over HTTP with the OpenAI API."),
    "chat": ("ullage.cli.generate:chat", "Talk with a model in this terminal."),
    "generate": ("ullage.cli.generate:generate", "Continue a text and print it as it is made."),
    "bench": ("ullage.cli.bench:bench", "Measure how fast a model runs on this machine."),
    "demo": ("ullage.cli.demo:demo", "Fetch, serve and ask a small model, and show its memory."),
}
"""Name -> (module:object, the line in the help)."""

USERS_MISTAKES = (ConfigError, ModelFileError, PlanError, RequestError)


class LateCommands(click.Group):
    """A group that knows its commands' names and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])


@click.group(cls=LateCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="ullage %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors (or set ULLAGE_DEBUG=1).")
@click.pass_obj
def ullage(state: dict[str, Any], debug: bool) -> None:
    """Serve large language models under a memory budget that is kept to the byte.

    A first try:  ullage pull smollm2  &&  ullage serve smollm2
    """
    state["debug"] = debug or os.environ.get("ULLAGE_DEBUG", "") not in ("", "0")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits the process."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns its exit code. One of the three doors where any exception is met."""
    state = {"debug": False}
    try:
        # A command that ends early by ctx.exit gives its code here; others give None.
        result = ullage.main(list(arguments), prog_name="ullage", obj=state, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        return _report(error, error.format_message(), _usage_hint(error), 2)
    except UllageError as error:
        code = 2 if isinstance(error, USERS_MISTAKES) else 1
        return _report(error, error.message, error.hint, code, state["debug"])
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:  # the reader of our output has left: nothing to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the door: nothing may reach the user as a traceback
        hint = "this is a bug in Ullage; run again with: ullage --debug ..."
        return _report(error, f"{type(error).__name__}: {error}", hint, 1, state["debug"])


def _usage_hint(error: click.ClickException) -> str | None:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"see: {error.ctx.command_path} --help"
    return None


def _report(error: BaseException, message: str, hint: str | None, code: int, debug: bool = False) -> int:
    if debug:
        traceback.print_exception(error)
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return code
