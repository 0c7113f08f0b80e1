"""``ullage serve`` as people start it: a process of its own, its engine in another, on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120
STOP_SECONDS = 60
ADDRESS = re.compile(r"^serving on (http://\S+)/v1", re.MULTILINE)


@dataclass(frozen=True)
class UllageServer:
    url: str
    process: subprocess.Popen[bytes]
    log_path: Path
    """All that it printed and logged."""

    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    @property
    def engine_pid(self) -> int:
        """Of the engine's process: the child that is Python too."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text("ascii").split()]
        (pid,) = [pid for pid in pids if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return pid


def serve_command(model: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "ullage", "serve", str(model), "--served-model-name", "smollm2", "--port=0", *flags]


def serve_environment(**extra: str) -> dict[str, str]:
    """No setting of the person who runs the tests; lines that aren't broken."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")}
    return kept | {"PYTHONPATH": ":".join(sys.path), "COLUMNS": "500", "OPENBLAS_NUM_THREADS": "1"} | extra


@contextmanager
def ullage_server(
    model: Path, log_path: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[UllageServer]:
    """Ready when it is given; stopped in good order afterwards, which must succeed unless it was ended before."""
    with log_path.open("wb") as log:
        command = serve_command(model, *flags)
        process = subprocess.Popen(command, env=environment or serve_environment(), stdout=log, stderr=log)
    try:
        yield UllageServer(_address(process, log_path), process, log_path)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS) == 0, log_path.read_text("utf-8")


def refused_start(model: Path, *flags: str) -> tuple[int, str]:
    """The exit code and the words of a server that doesn't start."""
    done = subprocess.run(
        serve_command(model, *flags),
        env=serve_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=START_SECONDS,
    )
    return done.returncode, done.stdout.decode()


def _address(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if (found := ADDRESS.search(log_path.read_text("utf-8"))) is not None:
            return found[1]
        assert process.poll() is None, f"the server ended: {log_path.read_text('utf-8')}"
        time.sleep(0.02)
    raise AssertionError(f"the server was not ready in time: {log_path.read_text('utf-8')}")
