"""Runs what the READMEs tell people to run: blocks marked ``run``, and beside a server those marked ``run server``."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"^```(bash|python) run( server)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Block:
    name: str
    language: str
    needs_server: bool
    text: str


def blocks_of(file_name: str) -> list[Block]:
    text = (ROOT / file_name).read_text("utf-8")
    return [
        Block(f"{file_name}:{text.count(chr(10), 0, match.start()) + 1}", match[1], bool(match[2]), match[3])
        for match in BLOCK.finditer(text)
    ]


ENGLISH = blocks_of("README.md")
CHINESE = blocks_of("README.zh-CN.md")


def run(block: Block, port: int | None = None) -> str:
    text = block.text if port is None else block.text.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    command = ["bash", "-euo", "pipefail", "-c", text] if block.language == "bash" else [sys.executable, "-c", text]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), stdout=-1, stderr=-1, timeout=LIMIT_SECONDS, stdin=subprocess.DEVNULL
    )
    output = done.stdout.decode()
    assert done.returncode == 0, f"{text}\n{output}\n{done.stderr.decode()}"
    return output


def environment() -> dict[str, str]:
    """This test's Python and its ``ullage`` come first, for ``make`` too."""
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "VENV": str(BIN.parent)}


@pytest.fixture(scope="module")
def server_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    subprocess.run([BIN / "ullage", "pull", "smollm2"], check=True, timeout=LIMIT_SECONDS)
    server = subprocess.Popen([BIN / "ullage", "serve", "smollm2", "--port", str(port)])
    try:
        wait_until_ready(server, port)
        yield port
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)


def wait_until_ready(server: subprocess.Popen, port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server was not ready in time")


@pytest.mark.parametrize("block", [b for b in ENGLISH if not b.needs_server], ids=lambda b: b.name)
def test_a_block_of_the_readme_runs(block):
    assert run(block).strip()


@pytest.mark.parametrize("block", [b for b in ENGLISH if b.needs_server], ids=lambda b: b.name)
def test_a_block_that_needs_the_server_runs(block, server_port):
    output = run(block, server_port)
    assert output.strip()
    assert '"error"' not in output


def test_both_languages_have_the_same_commands():
    def without_comments(blocks: list[Block]) -> list[str]:
        return [re.sub(r"#.*", "", block.text) for block in blocks]

    assert without_comments(CHINESE) == without_comments(ENGLISH)
    assert len(ENGLISH) >= 5


def test_python_examples_are_short():
    assert all(len(block.text.splitlines()) <= 40 for block in ENGLISH if block.language == "python")
