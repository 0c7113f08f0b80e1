"""``ullage serve``: a model behind the OpenAI API."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.cli.settings import SERVE
from ullage.cli.settings_flags import SettingsCommand, load_all

if TYPE_CHECKING:
    from rich.console import Console

    from ullage.access.config import AccessConfig
    from ullage.cli.settings import ModelOptions
    from ullage.engine.build import BuiltEngine, EngineOptions
    from ullage.service.config import ServiceConfig


@click.command(cls=SettingsCommand, sections=SERVE)
@click.argument("model")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with lines like max_model_len = 2048. Flags and ULLAGE_... variables win over it.",
)
def serve(model: str, config_path: Path | None, **flags: object) -> int:
    """Serve MODEL over HTTP with the OpenAI API.

    MODEL is a name in the store, a GGUF file or a folder. Every flag is also a line of the --config file and an
    environment variable: --max-model-len is max_model_len and ULLAGE_MAX_MODEL_LEN.
    """
    model_options, engine_options, config, access = load_all(SERVE, flags, config_path)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    return run_server(model, model_options, engine_options, config, access)


def run_server(
    model: str,
    model_options: ModelOptions,
    engine_options: EngineOptions,
    config: ServiceConfig,
    access: AccessConfig,
) -> int:
    """Takes the port, builds the engine, says what it is, serves until told to stop; returns the exit code."""
    from rich.console import Console

    from ullage.engine.build import build_engine
    from ullage.engine.launch import launch_engine
    from ullage.models.store import find_model
    from ullage.service import server
    from ullage.service.app import create_app
    from ullage.service.served_model import ServedModel

    console = Console()
    names = model_options.names(model)
    path = find_model(model)
    build = launch_engine if config.engine_process else build_engine
    bound = server.bind(config)
    with bound:
        started = time.monotonic()
        if console.is_terminal:
            with console.status(f"loading {model}"):
                built = build(path, engine_options)
        else:
            built = build(path, engine_options)
        _introduce(console, names[0], path, built, time.monotonic() - started)
        served = ServedModel(names, int(time.time()), built.tokenizer, built.chat_template)
        app = create_app(built.engine, served, config, access)
        return server.serve(app, config, bound=bound, on_ready=lambda address: _say_ready(console, address))


def _introduce(console: Console, name: str, path: Path, built: BuiltEngine, load_seconds: float) -> None:
    from ullage.base.byte_sizes import format_bytes
    from ullage.cli.memory_tables import plan_table

    console.print(
        f"{name}: {built.spec.architecture}, {path}, loaded in {load_seconds:.1f} s", highlight=False, soft_wrap=True
    )
    console.print(plan_table(built.plan))
    plan = built.plan
    at_least = "at least " if plan.demand.num_groups > 1 else ""
    console.print(
        f"KV pool: {plan.num_blocks:,} blocks of {plan.block_size} tokens, "
        f"{at_least}{plan.capacity_tokens:,} tokens in all "
        f"({format_bytes(plan.token_bytes)} each); one request has at most {plan.max_request_tokens:,}",
        highlight=False,
    )
    if plan.max_request_tokens < plan.max_model_len:
        console.print(
            f"the model could take {plan.max_model_len:,} tokens, the pool can't: more kv_memory lets it",
            highlight=False,
        )
    console.print(f"runs on: {built.runner_name}", highlight=False)
    if built.chat_template is None:
        console.print("the model has no chat template: /v1/completions answers, chats are refused", highlight=False)
    if built.warning:
        console.print(f"WARNING: {built.warning}", style="bold red", highlight=False)


def _say_ready(console: Console, address: str) -> None:
    console.print(f"serving on {address}/v1  (Ctrl-C stops)", style="bold", highlight=False)
