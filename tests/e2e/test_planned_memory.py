"""What ``ullage plan`` says of a server's memory beforehand is what the server then holds, loaded and under load."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LIMIT_SECONDS = 120
TOLERATED = {"64MiB": 0.05, "1GiB": 0.03}
"""Of libraries the system keeps more or fewer pages in memory, as it likes: some 17 MB of the smallest server's 350."""
CONTEXT = 512


def ullage(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ullage", *arguments]


def planned(path: Path, kv_memory: str) -> dict[str, Any]:
    options = ["--engine", "ullage", "--kv-memory", kv_memory, "--max-model-len", str(CONTEXT), "--format", "json"]
    said = subprocess.run(ullage("plan", str(path), *options), capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


@contextmanager
def serving(path: Path, kv_memory: str) -> Iterator[str]:
    options = ["--port", "0", "--kv-memory", kv_memory, "--max-model-len", str(CONTEXT), "--served-model-name", "m"]
    server = subprocess.Popen(ullage("serve", str(path), *options), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(found[1] for line in server.stdout if (found := re.search(r"serving on (http://\S+)/v1", line)))
        yield address
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=LIMIT_SECONDS)


def ask(url: str, body: object = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as answer:
        return json.load(answer)


@pytest.mark.parametrize("kv_memory", ["64MiB", "1GiB"])
@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_resident_memory_is_what_the_plan_says(model_path: Callable[[str], Path], name: str, kv_memory: str) -> None:
    plan = planned(model_path(name), kv_memory)
    with serving(model_path(name), kv_memory) as address:
        loaded = ask(f"{address}/v1/ledger")
        body = {"model": "m", "prompt": "The harbour master", "max_tokens": 64, "ignore_eos": True}
        with ThreadPoolExecutor(16) as clients:
            list(clients.map(lambda _: ask(f"{address}/v1/completions", body), range(48)))
        worked = ask(f"{address}/v1/ledger")
    for account in ("weights", "workspace", "logits"):
        (said,) = (entry["bytes"] for entry in plan["accounts"] if entry["name"] == account)
        assert loaded["accounts"][account] == {"planned_bytes": said, "allocated_bytes": said}
    about = pytest.approx(plan["total_bytes_per_rank"], rel=TOLERATED[kv_memory])
    for ledger in (loaded, worked):
        assert ledger["measured"]["resident_bytes"] == about
