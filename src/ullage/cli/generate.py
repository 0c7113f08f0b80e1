"""``ullage generate`` and ``ullage chat``: a model in this process and this terminal."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, TextIO

import click

from ullage.base.config import settings_of
from ullage.base.errors import InvalidRequestError, RequestError
from ullage.cli.settings import GENERATE
from ullage.cli.settings_flags import SettingsCommand, load_all
from ullage.engine.build import EngineOptions

if TYPE_CHECKING:
    from ullage.engine.client import GenerationOutput
    from ullage.engine.llm import LLM
    from ullage.engine.sampling_params import SamplingParams


@click.command(cls=SettingsCommand, sections=GENERATE)
@click.argument("model")
@click.option("--prompt", required=True, metavar="TEXT", help="What to continue; - reads it from standard input.")
def generate(model: str, prompt: str, **flags: object) -> None:
    """Continue a text with MODEL and print it as it is made.

    MODEL is a name in the store, a GGUF file or a folder.
    """
    text = _standard_input() if prompt == "-" else prompt
    llm, sampling = _load(model, flags)
    with llm:
        _print_pieces(llm.generate_stream(text, sampling))


@click.command(cls=SettingsCommand, sections=GENERATE)
@click.argument("model")
@click.option("--system", metavar="TEXT", help="Instructions that stand before the conversation.")
def chat(model: str, system: str | None, **flags: object) -> None:
    """Talk with MODEL in this terminal.

    /clear forgets the conversation, /exit ends it, Ctrl-C stops an answer. When standard input is not a terminal, all
    of it is one message. MODEL is a name in the store, a GGUF file or a folder.
    """
    llm, sampling = _load(model, flags)
    opening = [{"role": "system", "content": system}] if system else []
    with llm:
        if not llm.can_chat:  # said before anybody types
            raise InvalidRequestError("this model has no chat template: it is a base model", hint="use ullage generate")
        if _is_terminal(sys.stdin):
            click.echo("/exit ends, /clear forgets, Ctrl-C stops an answer")
            _converse(llm, sampling, opening)
        else:
            _print_pieces(llm.chat_stream([*opening, _user(_one_message())], sampling))


def _load(model: str, flags: dict[str, object]) -> tuple[LLM, SamplingParams]:
    from rich.console import Console

    from ullage.engine.llm import LLM

    sampling, engine = load_all(GENERATE, flags)
    params = sampling.params()  # refused before a model is loaded
    options = {name: getattr(engine, name) for name in settings_of(EngineOptions)}
    console = Console(stderr=True)
    if not console.is_terminal:
        return LLM(model, **options), params
    with console.status(f"loading {model}"):
        return LLM(model, **options), params


def _converse(llm: LLM, sampling: SamplingParams, opening: list[dict[str, str]]) -> None:
    import readline  # noqa: F401 - gives input() line editing and history

    messages = list(opening)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            click.echo()
            return
        if text == "/exit":
            return
        if text == "/clear":
            messages = list(opening)
        elif text:
            answer = _answer(llm, sampling, [*messages, _user(text)])
            if answer:
                messages += [_user(text), {"role": "assistant", "content": answer}]


def _answer(llm: LLM, sampling: SamplingParams, messages: list[dict[str, str]]) -> str:
    """What the model said, printed as it came; empty when the request was refused."""
    said: list[str] = []
    try:
        _print_pieces(llm.chat_stream(messages, sampling), said)
    except KeyboardInterrupt:
        click.echo(" [stopped]")
    except RequestError as error:
        click.echo(f"error: {error.message}\nhint: {error.hint or '/clear forgets the conversation'}", err=True)
    return "".join(said)


def _print_pieces(pieces: Generator[GenerationOutput], said: list[str] | None = None) -> None:
    with closing(pieces):  # whatever ends the printing ends the request
        for piece in pieces:
            click.echo(piece.text, nl=False)
            if said is not None:
                said.append(piece.text)
    click.echo()


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _one_message() -> str:
    text = _standard_input().strip()
    if not text:
        raise InvalidRequestError("standard input is empty", hint='pipe a message in: echo "Hello" | ullage chat MODEL')
    return text


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: it was closed before the program began


def _standard_input() -> str:
    """:raises InvalidRequestError: there is none, or it isn't text in UTF-8"""
    if sys.stdin is None:
        raise InvalidRequestError("standard input is closed")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequestError("standard input is not text in UTF-8", hint="convert it, with iconv say") from None
