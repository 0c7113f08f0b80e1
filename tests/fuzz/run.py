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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.bodies import throw_bodies

ROOT = Path(__file__).parents[2]
BODIES_SHARE = 0.2
"""Of the time, for broken bodies."""
LEFT_OUT = "positive_data_acceptance"
"""JSON Schema can't say all that makes a request right: that a prompt fits, that a grammar can be compiled."""


@contextmanager
def served(model: str) -> Iterator[str]:
    """The address of a server that runs meanwhile.

    :raises RuntimeError: it didn't start, or didn't end well
    """
    command = [sys.executable, "-m", "ullage", "serve", model, "--port", "0", "--kv-memory", "64MiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            addresses = (re.search(r"serving on (http://[^/]+)/v1", line) for line in server.stdout)
            address = next((match[1] for match in addresses if match), None)
            if address is None:
                raise RuntimeError("the server did not start")
            yield address
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
    return subprocess.run(command, env={**os.environ, **hooks}, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz a real server.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    asked = parser.parse_args()
    seconds = asked.minutes * 60
    with served(asked.model) as url:
        schema_holds = throw_schema(url, seconds * (1 - BODIES_SHARE), asked.seed)
        report = asyncio.run(throw_bodies(url, asked.model, asked.seed, seconds=seconds * BODIES_SHARE))
    print(report)
    return 0 if schema_holds and not report.findings else 1


if __name__ == "__main__":
    raise SystemExit(main())
