"""Half an hour of everything that goes wrong, at a real server: clients that leave, read slowly and come in crowds, an
engine that is killed or stopped, reloads. Then the books are compared.

    python -m tests.chaos.run --minutes 30

Needs the model smollm2. What is looked for:

- every request that was sent whole ends in exactly one way, and has exactly one line in the log;
- the answer's ``usage``, the line in the log and the totals of ``/metrics`` agree to the token;
- afterwards nothing runs, waits, is reserved or promised, no connection, file or thread is left, memory is flat;
- one request alone then takes as long as one did before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from tests.chaos.clients import Account, Client
from tests.chaos.verdict import compare_books

ROOT = Path(__file__).parents[2]
NUM_CLIENTS = 64
CROWD = 150
"""Requests that come at once, far beyond the queue."""
QUIET_SECONDS = 30.0
FLAGS = ("--port", "0", "--served-model-name", "tiny", "--kv-memory", "48MiB", "--max-model-len", "1024")
FLAGS += ("--max-waiting-requests", "80", "--log-level", "info", "--log-format", "json", "--send-timeout-seconds", "20")


@dataclass(frozen=True, slots=True)
class Held:
    """What the server's process holds."""

    num_files: int
    num_threads: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Server:
    process: subprocess.Popen[str]
    url: str
    log: Path
    limits: Path

    def held(self) -> Held:
        folder = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
        resident_bytes = int(status["VmRSS"].split()[0]) * 1024
        return Held(len(os.listdir(folder / "fd")), int(status["Threads"]), resident_bytes)

    def engine_pid(self) -> int | None:
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        return pids[0] if pids else None


@contextmanager
def served(model: str, folder: Path) -> Iterator[tuple[Server, str]]:
    """A server with keys and limits, and a key to it."""
    ullage = (sys.executable, "-m", "ullage")
    keys, limits, log = folder / "keys.db", folder / "limits.toml", folder / "server.log"
    limits.write_text("[default]\nrequests_per_minute = 1000000\n")
    create = [*ullage, "keys", "--file", str(keys), "create", "--tenant", "crowd"]
    create += ["--route-group", "inference", "--route-group", "observe", "--route-group", "admin"]
    key = subprocess.run(create, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    command = [*ullage, "serve", model, *FLAGS, "--api-keys-file", str(keys), "--limits-file", str(limits)]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT) as process,
    ):
        try:
            assert process.stdout is not None
            addresses = (re.search(r"serving on (http://[^/]+)/v1", line) for line in process.stdout)
            address = next((match[1] for match in addresses if match), None)
            if address is None:
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            yield Server(process, address, log, limits), key
        finally:
            process.terminate()


async def disturb(server: Server, http: httpx.AsyncClient, until: float, seed: int, deeds: Counter[str]) -> None:
    """Kills, stops and reloads, some seconds apart. An engine is killed seldom enough to be started again each time."""
    rng = random.Random(seed)
    last_death = 0.0
    while time.monotonic() < until:
        await asyncio.sleep(rng.uniform(2, 12))
        deed = rng.choice(("kill", "stop", "reload by signal", "reload", "bad reload", "crowd"))
        pid = server.engine_pid()
        if deed in ("kill", "stop"):
            if pid is None or time.monotonic() - last_death < 150 or until - time.monotonic() < 30:
                continue
            last_death = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if deed == "kill" else signal.SIGSTOP)
        elif deed == "crowd":
            clients = [Client(f"crowd{deeds[deed]}-{i}", http, ACCOUNT, rng.getrandbits(32)) for i in range(CROWD)]
            await asyncio.gather(*(client.ask() for client in clients))
        elif deed == "bad reload":
            good = server.limits.read_text()
            server.limits.write_text("[default]\nnonsense = 1\n")
            answer = await http.post("/admin/reload")
            if answer.status_code != 400:
                ACCOUNT.find("reload", f"a bad file was answered {answer.status_code}")
            server.limits.write_text(good)
        elif deed == "reload":
            server.limits.write_text(f"[default]\nrequests_per_minute = {rng.randint(900_000, 1_000_000)}\n")
            answer = await http.post("/admin/reload")
            if answer.status_code != 200:
                ACCOUNT.find("reload", f"answered {answer.status_code} {answer.text}")
        else:
            server.process.send_signal(signal.SIGHUP)
        deeds[deed] += 1


ACCOUNT = Account()


async def latency(http: httpx.AsyncClient, num_requests: int = 15) -> float:
    """Median seconds of one request alone."""
    body = {"model": "tiny", "prompt": "one two three", "max_tokens": 16, "ignore_eos": True, "temperature": 0}
    seconds = []
    for i in range(num_requests):
        began = time.monotonic()
        answer = await http.post("/v1/completions", json=body, headers={"x-request-id": f"alone-{began}-{i}"})
        assert answer.status_code == 200, answer.text
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


async def run(server: Server, key: str, minutes: float, seed: int) -> list[str]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=NUM_CLIENTS)
    headers = {"authorization": f"Bearer {key}"}
    deeds: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=None, limits=limits) as http:
        await latency(http)
        before = await latency(http)
        until = time.monotonic() + minutes * 60
        clients = [Client(f"client{i}", http, ACCOUNT, seed + i) for i in range(NUM_CLIENTS)]
        warm_up = asyncio.create_task(note_after(min(120.0, minutes * 20), server))
        await asyncio.gather(*(client.run(until) for client in clients), disturb(server, http, until, seed, deeds))
        held_early = await warm_up
        after_chaos = await settle(http)
    await asyncio.sleep(1)
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http:
        after = await latency(http)
        held = server.held()
        metrics = (await http.get("/metrics")).text
        ledger = (await http.get("/v1/ledger")).json()
    print("deeds:", dict(deeds))
    print("endings:", dict(sorted(ACCOUNT.endings.items())))
    print(f"held: {held_early} in the midst of it, {held} after it; ready again after {after_chaos:.1f} s")
    print(f"one request alone: {before * 1e3:.0f} ms before, {after * 1e3:.0f} ms after")
    if after > 1.5 * before:
        ACCOUNT.find("latency", f"{after:.3f} s after, {before:.3f} s before")
    if held.num_files > held_early.num_files or held.num_threads > held_early.num_threads:
        ACCOUNT.find("held", "files or threads are left")
    if held.resident_bytes > 1.05 * held_early.resident_bytes:
        ACCOUNT.find("held", "resident memory has grown")
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    return ACCOUNT.findings + compare_books(ACCOUNT, lines, metrics, ledger)


async def note_after(seconds: float, server: Server) -> Held:
    """What it holds under load, once all that is made at first use is there."""
    await asyncio.sleep(seconds)
    return server.held()


async def settle(http: httpx.AsyncClient) -> float:
    """Waits until the server is ready and idle; returns the seconds."""
    began = time.monotonic()
    while True:
        answer = await http.get("/health/ready")
        if answer.status_code == 200 and not answer.json()["num_running"] + answer.json()["num_waiting"]:
            return time.monotonic() - began
        assert time.monotonic() - began < QUIET_SECONDS, answer.text
        await asyncio.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make trouble for a real server.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(asked.model, Path(folder)) as (server, key):
        findings = asyncio.run(run(server, key, asked.minutes, asked.seed))
    for finding in findings[:50]:
        print(finding)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
