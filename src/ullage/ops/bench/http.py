"""Servers of the same model beside each other, over HTTP, loaded by a generator that isn't ours: guidellm.

    python -m ullage.ops.bench.http smollm2 --peers .peers --output benchmarks/results

Each server runs alone, and is asked for completions of 128 tokens after 256 by so many clients at once. Beside Ullage
run those that are found below the folder of peers: ``vllm/bin/vllm`` (the model in bf16, as it reads nothing smaller
of it) and ``llamacpp/bin/llama-server``. guidellm is ``guidellm/bin/guidellm`` there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ullage.base.errors import EngineError
from ullage.models.model_file import ModelFile
from ullage.models.open_model import open_model
from ullage.models.store import find_model
from ullage.ops.bench.hf_export import export_folder
from ullage.ops.bench.machine import describe_commit, describe_machine, describe_versions
from ullage.ops.bench.result import write_result
from ullage.ops.bench.run import RESULT_FORMAT

PROMPT_TOKENS, OUTPUT_TOKENS = 256, 128
STREAMS = {1: 12, 32: 96}
"""Clients at once -> requests of a run."""
READY_SECONDS, RUN_SECONDS, STOP_SECONDS = 300.0, 900.0, 20.0
NAME = "tiny"


@dataclass(frozen=True, slots=True)
class Server:
    """How one is started.

    :param command: given the port
    """

    name: str
    command: Callable[[int], Sequence[str]]
    environ: Mapping[str, str]


def servers(model: Path, hf_folder: Path, peers: Path) -> list[Server]:
    """Ours, and those that are found. All have room for 32 sequences of 512 tokens."""
    ours = [sys.executable, "-m", "ullage", "serve", str(model), "--served-model-name", NAME, "--kv-memory", "1GiB"]
    found = [Server("Ullage", lambda port: [*ours, "--max-model-len", "2048", "--port", str(port)], {})]
    vllm, llama = peers / "vllm/bin/vllm", peers / "llamacpp/bin/llama-server"
    if vllm.exists():
        flags = ["--served-model-name", NAME, "--max-model-len", "2048", "--dtype", "bfloat16", "--max-num-seqs", "32"]
        environ = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        vllm_command = [str(vllm), "serve", str(hf_folder), "--host", "127.0.0.1", *flags]
        found.append(Server("vLLM, bf16", lambda port: [*vllm_command, "--port", str(port)], environ))
    if llama.exists():
        flags = ["-a", NAME, "-t", str(os.cpu_count()), "-c", str(32 * 512), "-np", "32", "--host", "127.0.0.1"]
        llama_command = [str(llama), "-m", str(model), *flags]
        found.append(Server("llama.cpp", lambda port: [*llama_command, "--port", str(port)], {}))
    return found


def export_with_tokenizer(model: ModelFile, folder: Path) -> None:
    """As a Hugging Face folder, for vLLM and for the generator, which counts tokens by itself."""
    folder.mkdir()
    export_folder(model, folder)
    model.tokenizer().save(folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.spec.max_position}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@contextmanager
def running(server: Server, log: Path) -> Iterator[str]:
    """Its address, once it says that it is healthy.

    :raises EngineError: it isn't in time
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environ = {**os.environ, **server.environ}
    with (
        log.open("w") as output,
        subprocess.Popen(
            server.command(port), stdout=output, stderr=output, env=environ, start_new_session=True
        ) as process,
    ):
        try:
            _wait_until_healthy(url, process, server.name, log)
            yield url
        finally:
            _end(process)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(f"{url}/health") as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise EngineError(f"{name} didn't become healthy: {log.read_text(errors='replace')[-500:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and all of its own processes."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
            return


def load(guidellm: Path, url: str, num_streams: int, hf_folder: Path, scratch: Path) -> dict[str, Any]:
    """One run of the generator: what it says of the requests that were answered.

    :raises EngineError: it failed, or a request did
    """
    report = scratch / "report.json"
    command = [str(guidellm), "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={url},model={NAME},request_format=/v1/completions"]
    command += ["--profile", f"kind=concurrent,streams={num_streams}"]
    command += ["--constraint", f"kind=max_requests,count={STREAMS[num_streams]}"]
    command += ["--tokenizer", f"kind=hf_auto,model={hf_folder}", "--output", f"kind=json,path={report}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    if done.returncode != 0:
        raise EngineError(f"the load generator failed: {done.stderr[-500:]}")
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    if metrics["request_totals"]["successful"] != STREAMS[num_streams]:
        raise EngineError(f"not all requests were answered: {metrics['request_totals']}")
    output_tokens = metrics["output_token_count"]["successful"]["total_sum"]
    return {
        "num_requests": STREAMS[num_streams],
        "prompt_tokens": metrics["prompt_token_count"]["successful"]["total_sum"],
        "output_tokens": output_tokens,
        "output_tokens_per_second": output_tokens / benchmark["duration"],
        "first_token_ms": _spread(metrics["time_to_first_token_ms"]),
        "between_tokens_ms": _spread(metrics["inter_token_latency_ms"]),
    }


def _spread(metric: Mapping[str, Any]) -> dict[str, float]:
    answered = metric["successful"]
    return {"median": answered["median"], "p95": answered["percentiles"]["p95"]}


def measure(model: Path, peers: Path, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All servers in turn, ``rounds`` times; of a server's runs the one with the median throughput."""
    runs: dict[str, dict[int, list[dict[str, Any]]]] = {}
    failures: dict[str, str] = {}
    guidellm = peers / "guidellm/bin/guidellm"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        opened = open_model(model)
        export_with_tokenizer(opened, scratch / "hf")
        opened.close()
        for server in servers(model, scratch / "hf", peers) * rounds:
            if server.name in failures:
                continue
            try:
                with running(server, scratch / "server.log") as url:
                    for num_streams in STREAMS:
                        run = load(guidellm, url, num_streams, scratch / "hf", scratch)
                        runs.setdefault(server.name, {}).setdefault(num_streams, []).append(run)
                        say(f"{server.name:12} {num_streams:3} clients {run['output_tokens_per_second']:7.1f} tokens/s")
            except (EngineError, subprocess.TimeoutExpired) as error:
                failures[server.name] = str(error)
                say(f"{server.name}: {error}")
    points = [
        {"server": server, "num_streams": num_streams, "median_run": _median_run(done), "runs": done}
        for server, by_streams in runs.items()
        for num_streams, done in by_streams.items()
    ]
    return {"points": points, "failures": failures}


def _median_run(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    middle = statistics.median_low(run["output_tokens_per_second"] for run in runs)
    return next(run for run in runs if run["output_tokens_per_second"] == middle)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure servers over HTTP.")
    parser.add_argument("model")
    parser.add_argument("--peers", type=Path, default=Path(".peers"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    model = find_model(asked.model)
    began = datetime.now(UTC)
    versions = subprocess.run(
        [asked.peers / "guidellm/bin/guidellm", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()
    result = {
        "format": RESULT_FORMAT,
        "kind": "http",
        "scenario": "http",
        "date": began.strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"python -m ullage.ops.bench.http {Path(asked.model).name} --rounds {asked.rounds}",
        **describe_commit(),
        "versions": {**describe_versions(), "guidellm": versions[-1]},
        "machine": describe_machine(),
        "model": {"name": model.name},
        "settings": {"weight_type": "file"},
        **measure(model, asked.peers, asked.rounds, lambda line: print(line, flush=True)),
    }
    if asked.output is not None:
        print(f"result: {write_result(result, asked.output)}")


if __name__ == "__main__":
    main()
