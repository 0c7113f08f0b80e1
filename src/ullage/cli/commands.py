"""The commands by name. One is imported when it is asked for, so that ``ullage --help`` answers at once."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import click

from ullage import __version__

COMMANDS = {
    "pull": ("ullage.cli.store:pull", "Fetch a demo model into the model store."),
    "list": ("ullage.cli.store:list_", "List the models in the store, and those that can be pulled."),
    "plan": ("ullage.cli.plan:plan", "Say whether a model fits a device, and what limits it."),
    "serve": ("ullage.cli.serve:serve", "Serve a model over HTTP with the OpenAI API."),
    "config": ("ullage.cli.config:config", "Check a configuration before a server gets it."),
    "gateway": ("ullage.cli.gateway:gateway", "Spread requests over several servers."),
    "keys": ("ullage.cli.keys:keys", "Make, list and revoke API keys."),
    "top": ("ullage.cli.top:top", "Watch a running server: its memory, blocks, requests and speed."),
    "chat": ("ullage.cli.generate:chat", "Talk with a model in this terminal."),
    "generate": ("ullage.cli.generate:generate", "Continue a text and print it as it is made."),
    "bench": ("ullage.cli.bench:bench", "Measure speed and memory on this machine."),
    "demo": ("ullage.cli.demo:demo", "Fetch, serve and ask a small model, and show its memory."),
}
"""Name -> (module:object, the line in the help)."""


class LateCommands(click.Group):
    """A group that knows its commands' names and imports one only to run it.

    :param commands_by_name: name -> (module:object, the line in the help)
    """

    def __init__(self, *, commands_by_name: Mapping[str, tuple[str, str]], **others: Any) -> None:
        super().__init__(**others)
        self._by_name = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._by_name:
            return None
        module, _, name = self._by_name[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in self._by_name.items()])


@click.group(
    cls=LateCommands,
    commands_by_name=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, message="ullage %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors (or set ULLAGE_DEBUG=1).")
@click.pass_obj
def ullage(state: dict[str, Any], debug: bool) -> None:
    """Serve large language models under a memory budget that is kept to the byte.

    A first try:  ullage pull smollm2  &&  ullage serve smollm2
    """
    state["debug"] = debug or os.environ.get("ULLAGE_DEBUG", "") not in ("", "0")
