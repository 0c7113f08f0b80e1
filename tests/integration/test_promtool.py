"""Prometheus's own checker finds nothing wrong with what is served."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import httpx
from tests.http_server import running_server
from tests.integration.test_http_embedded import make_engine
from tests.scripted_engine import ByteTokenizer

from ullage.service.known_answer import KnownQuestion


async def promtool(*arguments: str, text: str) -> tuple[int, str]:
    program = shutil.which("promtool")
    assert program, "promtool is missing: install the package prometheus"
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate(text.encode())
    assert process.returncode is not None
    return process.returncode, output.decode()


async def text_of_metrics() -> str:
    engine = make_engine()
    question = KnownQuestion.of(ByteTokenizer(), engine.max_request_tokens, None)
    async with running_server(engine, question=question) as server, httpx.AsyncClient(base_url=server.url) as client:
        for prompt in ("hello", "", "x" * 500):
            await client.post("/v1/completions", json={"model": "tiny", "prompt": prompt, "max_tokens": 3})
        return (await client.get("/metrics")).text


async def test_promtool_finds_nothing_wrong() -> None:
    text = await text_of_metrics()
    assert await promtool("check", "metrics", text=text) == (0, "")


async def test_every_metric_in_the_documentation_is_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    table = page.partition("## Metrics")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z_]+)(?:\{\w+\})?`[,| ]", "".join(re.findall(r"^\|.*?\|", table, re.M)))
    assert len(names) > 20
    text = await text_of_metrics()
    assert [name for name in names if f"# TYPE ullage_{name} " not in text] == []


async def test_promtool_would_find_something() -> None:
    code, output = await promtool("check", "metrics", text="# TYPE a_total gauge\na_total 1\n")
    assert code != 0
    assert "a_total" in output
