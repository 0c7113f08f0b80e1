"""``ullage gateway`` as a program of its own."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60


@dataclass(frozen=True)
class GatewayProgram:
    process: asyncio.subprocess.Process
    url: str


def write_replicas(path: Path, urls: Mapping[str, str]) -> None:
    path.write_text("".join(f'[[replicas]]\nname = "{name}"\nurl = "{url}"\n' for name, url in urls.items()))


@asynccontextmanager
async def gateway_program(path: Path, *flags: str) -> AsyncIterator[GatewayProgram]:
    """Ready; its log goes to ``gateway.log`` beside the file of the replicas."""
    with (path.parent / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ullage", "gateway", str(path), "--port", "0", *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
        match = re.match(rb"gateway on (http://\S+)/v1", line)
        assert match, line
        yield GatewayProgram(process, match[1].decode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
