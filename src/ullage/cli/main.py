"""The command line's front door: finds the command, and turns every error into two lines and an exit code.

Exit codes: 0 done, 1 it failed, 2 the user can mend it (usage, settings, model file, plan, request), 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits the process."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # from here on Ctrl-C ends the process without a word
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns its exit code."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        warnings.simplefilter("ignore")  # of coroutines that now never run
        sys.stderr.write("interrupted\n")
        return 130


def _run(arguments: Sequence[str]) -> int:
    """One of the three doors where any exception is met. Whatever goes wrong while a command is being interrupted
    belongs to the interrupt."""
    import click  # imported here, where Ctrl-C is met

    from ullage.base.errors import ConfigError, ModelFileError, PlanError, RequestError, UllageError
    from ullage.cli.commands import ullage

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
    except click.Abort:
        raise KeyboardInterrupt from None
    except UllageError as error:
        code = 2 if isinstance(error, (ConfigError, ModelFileError, PlanError, RequestError)) else 1
        return _report(error, error.message, error.hint, code, state["debug"])
    except BrokenPipeError:  # the reader of our output has left: nothing to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        hint = "the system refused this; see where with: ullage --debug ..."
        return _report(error, str(error), hint, 1, state["debug"])
    except Exception as error:  # noqa: BLE001 - the door: nothing may reach the user as a traceback
        hint = "this is a bug in Ullage; run again with: ullage --debug ..."
        return _report(error, f"{type(error).__name__}: {error}", hint, 1, state["debug"])


def _usage_hint(error: Exception) -> str | None:
    context = getattr(error, "ctx", None)
    return None if context is None else f"see: {context.command_path} --help"


def _report(error: BaseException, message: str, hint: str | None, code: int, debug: bool = False) -> int:
    import traceback

    if debug:
        traceback.print_exception(error)
    if _came_from_an_interrupt(error):
        raise KeyboardInterrupt
    sys.stderr.write(f"error: {message}\n")
    if hint:
        sys.stderr.write(f"hint: {hint}\n")
    return code


def _came_from_an_interrupt(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
