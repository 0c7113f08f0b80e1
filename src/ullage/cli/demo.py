"""``ullage demo``: fetch, serve, ask, measure. It meets the server only over HTTP, as any client would."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import click

from ullage.base.errors import ConfigError, UllageError

MODEL = "smollm2"
QUESTION = (  # a model this small needs to be told what it is asked about
    "A KV cache keeps the attention keys and values of earlier tokens in memory, so that a language model does not "
    "compute them again for each new token. Explain in two sentences what a KV cache is and why it makes generating "
    "text faster."
)
MAX_TOKENS = 120
READY_SECONDS = 180
STOP_SECONDS = 15
ANSWER_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Timing:
    """What one streamed answer took, seen from the client."""

    first_token_seconds: float
    decode_seconds: float
    """From the first piece of text to the last."""
    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def decode_tokens_per_second(self) -> float:
        return (self.num_output_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0


@click.command()
@click.option("--stay-up", is_flag=True, help="Leave the server running until Ctrl-C, and print a curl line.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the server.  [default: a free one]")
def demo(stay_up: bool, port: int) -> None:
    """Fetch, serve and ask a small model, and show its memory."""
    from ullage.cli.store import pull_with_bar

    if port and not _is_free(port):  # else whatever answers there would be taken for the demo's own server
        raise ConfigError(f"port {port} is in use", hint="choose another, or leave --port away")
    pull_with_bar(MODEL)
    with running_server(port or (8000 if stay_up and _is_free(8000) else _free_port())) as (process, port):
        click.echo(f"\n> {QUESTION}\n")
        timing = ask(port, QUESTION)
        first_ms = timing.first_token_seconds * 1000
        click.echo(
            f"\n\n{timing.num_output_tokens} tokens at {timing.decode_tokens_per_second:.1f} tokens/s; "
            f"the first after {first_ms:.0f} ms, behind a prompt of {timing.num_prompt_tokens} tokens\n"
        )
        show_memory(port)
        if stay_up:
            click.echo(
                f"\nThe server stays up; Ctrl-C stops it. To paste into another terminal:\n\n{curl_line(port)}\n"
            )
            wait_for_interrupt(process)


@contextmanager
def running_server(port: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """``ullage serve`` in a process of its own, ready when this yields, stopped afterwards."""
    # Whatever the environment says.
    ours = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL, "--log-level", "warning"]
    process = subprocess.Popen([sys.executable, "-m", "ullage", "serve", MODEL, *ours])
    try:
        wait_until_ready(process, port)
        yield process, port
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UllageError(f"the server ended with exit code {process.returncode} before it was ready")
        try:
            with request(port, "GET", "/health/ready") as response:
                if response.status == 200:
                    return
        except OSError:  # not listening yet
            pass
        time.sleep(0.1)
    raise UllageError(f"the server was not ready within {READY_SECONDS} seconds")


@contextmanager
def request(
    port: int, method: str, path: str, body: dict[str, Any] | None = None
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    with closing(connection):
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, path, content, {"content-type": "application/json"} if body else {})
        yield connection.getresponse()


def ask(port: int, question: str) -> Timing:
    """Prints the answer to ``question`` as it arrives."""
    body = chat_body(question) | {"stream": True, "stream_options": {"include_usage": True}}
    arrivals: list[float] = []
    usage: dict[str, int] = {}
    started = time.perf_counter()
    with request(port, "POST", "/v1/chat/completions", body) as response:
        if response.status != 200:
            raise UllageError(f"the server answered {response.status}: {response.read().decode(errors='replace')}")
        for event in events(response):
            usage = event.get("usage") or usage
            text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if text or any(choice["finish_reason"] for choice in event["choices"]):
                arrivals.append(time.perf_counter() - started)
            click.echo(text, nl=False)
    if not arrivals:
        raise UllageError("the server's answer had no text")
    return Timing(arrivals[0], arrivals[-1] - arrivals[0], usage["prompt_tokens"], usage["completion_tokens"])


def show_memory(port: int) -> None:
    """The table of what was planned and what the server's processes take."""
    from rich.console import Console

    from ullage.cli.memory_tables import ledger_table

    with request(port, "GET", "/v1/ledger") as response:
        ledger = json.loads(response.read())
    Console().print(ledger_table(ledger["accounts"], ledger["measured"]["resident_bytes"]))


def chat_body(question: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON payloads of a stream of server-sent events, up to ``[DONE]``."""
    for line in response:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            event = json.loads(line[len(b"data: ") :])
            if "error" in event:
                raise UllageError(f"the server ended the answer: {event['error']['message']}")
            yield event
    raise UllageError("the server ended the stream without [DONE]")


def curl_line(port: int) -> str:
    body = json.dumps(chat_body("What is a KV cache?") | {"stream": True})
    return f"curl -N http://127.0.0.1:{port}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


def wait_for_interrupt(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait()
    except KeyboardInterrupt:  # the way to stop it, so not a failure
        return
    raise UllageError(f"the server ended with exit code {process.returncode}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
