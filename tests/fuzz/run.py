"""Throws at a real server what its own document allows and forbids, then bodies that are broken in every way we know.

    python -m tests.fuzz.run --minutes 20

Needs schemathesis (``pip install --group fuzz``) and the model smollm2. The exit code is 0 when nothing was found.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.fuzz.bodies import throw_bodies

ROOT = Path(__file__).parents[2]
BODIES_SHARE = 0.2
"""Of the time, for broken bodies."""
MOST_RESIDENT_BYTES = 1 << 30
"""Of the process that speaks HTTP: a multiple of what it needs, far below what the bodies sent come to."""
LEFT_OUT = "positive_data_acceptance"
"""JSON Schema can't say all that makes a request right: that a prompt fits, that a grammar can be compiled."""


@contextmanager
def served(model: str) -> Iterator[tuple[str, int]]:
    """The address of a server that runs meanwhile, and its process id.

    :raises RuntimeError: it didn't start, or didn't end well
    """
    command = [sys.executable, "-m", "ullage", "serve", model, "--port", "0", "--kv-memory", "64MiB"]
    command += ["--max-model-len", "512", "--log-level", "warning"]  # no right request takes long
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            addresses = (re.search(r"serving on (http://[^/]+)/v1", line) for line in server.stdout)
            address = next((match[1] for match in addresses if match), None)
            if address is None:
                raise RuntimeError("the server did not start")
            yield address, server.pid
        finally:
            server.terminate()
    if server.returncode != 0:
        raise RuntimeError(f"the server ended with {server.returncode}")


def throw_schema(url: str, seconds: float, seed: int) -> bool:
    """Whether schemathesis found nothing."""
    program = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise RuntimeError("schemathesis isn't installed: pip install --group fuzz")
    command = [program, "run", f"{url}/openapi.json", "--checks", "all", "--exclude-checks", LEFT_OUT]
    command += ["--max-time", f"{seconds:.0f}", "--workers", "4", "--request-timeout", "60", "--continue-on-failure"]
    command += ["--seed", str(seed)]
    hooks = {"SCHEMATHESIS_HOOKS": "tests.fuzz.schema_hooks", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:  # it keeps what it found beside where it runs
        return subprocess.run(command, env={**os.environ, **hooks}, cwd=folder, check=False).returncode == 0


def peak_resident_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text("ascii")
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz a real server.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    asked = parser.parse_args()
    seconds = asked.minutes * 60
    with served(asked.model) as (url, process_id):
        schema_holds = throw_schema(url, seconds * (1 - BODIES_SHARE), asked.seed)
        report = asyncio.run(throw_bodies(url, asked.model, asked.seed, seconds=seconds * BODIES_SHARE))
        most_bytes = peak_resident_bytes(process_id)
        num_restarts = httpx.get(f"{url}/v1/ledger").json()["engine"]["num_restarts"]
    if most_bytes > MOST_RESIDENT_BYTES:
        report.findings.append("the server took too much memory")
    if num_restarts:
        report.findings.append("the engine died and was started anew")
    print(report)
    print(f"the server's process had at most {most_bytes / 2**20:.0f} MiB; the engine restarted {num_restarts} times")
    return 0 if schema_holds and not report.findings else 1


if __name__ == "__main__":
    raise SystemExit(main())
