"""``ullage serve``: a model behind the OpenAI API."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ullage.base.background_stream import BackgroundStream
from ullage.base.config import setting_values
from ullage.base.logs import set_up_logging
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
    options = load_all(SERVE, flags, config_path)
    model_options, engine_options, config, access = options
    set_up_logging(config.log_level, config.log_format, BackgroundStream(sys.stderr))

    def read_again() -> dict[str, Any]:
        return setting_values(*load_all(SERVE, flags, config_path))

    with _stoppable_while_loading():
        return run_server(model, model_options, engine_options, config, access, read_again)


def run_server(
    model: str,
    model_options: ModelOptions,
    engine_options: EngineOptions,
    config: ServiceConfig,
    access: AccessConfig,
    read_again: Callable[[], dict[str, Any]] | None = None,
) -> int:
    """Takes the port, builds the engine, says what it is, serves until told to stop; returns the exit code.

    :param read_again: all settings, when they are to be reloaded; None: they stay as they are
    """
    from rich.console import Console

    from ullage.engine.build import build_engine
    from ullage.engine.launch import launch_engine
    from ullage.models.store import find_model, store_root
    from ullage.models.weights_digest import begin_weights_digest
    from ullage.service import server
    from ullage.service.app import create_app
    from ullage.service.known_answer import KnownQuestion, PinnedAnswer
    from ullage.service.served_model import ServedModel
    from ullage.service.tls import server_context

    console = Console()
    names = model_options.names(model)
    path = find_model(model)
    build = launch_engine if config.engine_process else build_engine
    server_context(config)  # what is wrong with a certificate is told before anything slow is loaded
    bound = server.bind(config)
    with bound:
        digest = begin_weights_digest(path)  # beside the loading: it reads the same files
        started = time.monotonic()
        if console.is_terminal:
            with console.status(f"loading {model}"):
                built = build(path, engine_options)
        else:
            built = build(path, engine_options)
        _introduce(console, names[0], path, built, time.monotonic() - started)
        served = ServedModel(names, int(time.time()), built.tokenizer, built.chat_template)
        pinned = PinnedAnswer(store_root().parent / "known-answers", digest, built.runner_name)
        question = KnownQuestion.of(built.tokenizer, built.engine.max_request_tokens, pinned)
        app = create_app(built.engine, served, config, access, question)
        if read_again is not None:
            given = setting_values(model_options, engine_options, config, access)
            app.state.service.reloads.follow(read_again, given)
        return server.serve(app, config, bound=bound, on_ready=lambda address: _say_ready(console, address))


@contextmanager
def _stoppable_while_loading() -> Iterator[None]:
    """Nothing is accepted yet, so a stop that was asked for is a success; and there is nothing to reload. Once it
    serves, the server has handlers of its own.
    """

    def stop(*_: object) -> None:
        sys.exit(0)

    handlers: dict[int, Any] = {signal.SIGTERM: stop, signal.SIGHUP: signal.SIG_IGN}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
