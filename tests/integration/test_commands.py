"""The commands as a person starts them, on a tiny model with random weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from tests.model_fixtures import tiny_model, write_gguf

WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_model("llama")))


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """No setting and no store of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")}
    return kept | {"ULLAGE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}


def ullage(environment: dict[str, str], *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ullage", *arguments]
    return subprocess.run(command, env=environment, input=text, capture_output=True, text=True, timeout=WAIT_SECONDS)


def lines_until(server: subprocess.Popen[str], start: str) -> Iterator[str]:
    assert server.stdout is not None
    for line in server.stdout:
        yield line
        if line.startswith(start):
            return
    raise AssertionError(f"the server ended before it said {start!r}")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_serve_shows_its_plan_serves_and_stops_with_success(model, environment, tmp_path, stop):
    config = tmp_path / "server.toml"
    config.write_text('port = 0\nkv-memory = "1MiB"\nserved_model_name = "tiny, other"\n')
    command = [sys.executable, "-m", "ullage", "serve", model, "--config", str(config), "--runner", "numpy"]
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True) as server:
        try:
            shown = list(lines_until(server, "serving on"))
            address = shown[-1].split()[2]
            with urllib.request.urlopen(f"{address}/models", timeout=WAIT_SECONDS) as answer:
                names = [entry["id"] for entry in json.load(answer)["data"]]
        finally:
            server.send_signal(stop)
        assert server.wait(WAIT_SECONDS) == 0
    assert names == ["tiny", "other"]
    table = "".join(shown)
    assert all(account in table for account in ("weights", "kv_pool", "workspace", "logits", "runtime", "headroom"))
    assert "runs on: numpy (reference)" in table


def test_generate_prints_what_the_model_says(model, environment):
    flags = ["--runner", "numpy", "--max-tokens", "5", "--temperature", "0"]
    first = ullage(environment, "generate", model, "--prompt", "hello the", *flags)
    again = ullage(environment, "generate", model, "--prompt", "-", *flags, text="hello the")
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout.endswith("\n")


def test_chat_answers_one_message_from_a_pipe(model, environment):
    done = ullage(environment, "chat", model, "--runner", "numpy", "--max-tokens", "5", text="hello\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert ullage(environment, "chat", model, "--runner", "numpy").returncode == 2


INTERRUPT_AT = """
import os, signal, sys
moment = sys.argv.pop(1)
def watch(frame, event, argument):
    if event == "call" and f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}" == moment:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(watch)
from ullage.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("moment", "arguments"),
    [
        ("click:<module>", ["generate", "MODEL", "--prompt", "hello", "--max-tokens", "5"]),
        ("ullage.cli.generate:<module>", ["generate", "MODEL", "--prompt", "hello", "--max-tokens", "5"]),
        (
            "ullage.models.mapped_file:MappedFile._decode_into",
            ["generate", "MODEL", "--prompt", "hello", "--max-tokens", "5"],
        ),
        ("ullage.models.mapped_file:_all_finite", ["chat", "MODEL"]),
        ("ullage.ops.bench.run:run_bench", ["bench", "engine", "MODEL"]),
        ("ullage.engine.llm:LLM._run", ["generate", "MODEL", "--prompt", "hello", "--max-tokens", "5"]),
        ("ullage.engine.llm:_checked", ["generate", "MODEL", "--prompt", "hello", "--max-tokens", "5"]),
        ("ullage.ops.bench.measure:Comparison.measure", ["bench", "engine", "MODEL", "--scenario", "smoke"]),
        ("ullage.engine.llm:LLM.close", ["generate", "MODEL", "--prompt", "hello", "--max-tokens", "5"]),
        ("ullage.models.mapped_file:_all_finite", ["serve", "MODEL", "--port", "0", "--no-engine-process"]),
        ("ullage.engine.child_process:ChildProcess.wait_until_ready", ["serve", "MODEL", "--port", "0"]),
        ("ullage.cli.serve:_introduce", ["serve", "MODEL", "--port", "0"]),
        ("ullage.service.server:serve", ["serve", "MODEL", "--port", "0"]),
        ("ullage.models.store:pull", ["pull", "smollm2"]),
        ("ullage.models.package_download:_still_running", ["pull", "smollm2"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_an_interrupt_at_any_moment_ends_without_a_traceback(model, environment, moment, arguments):
    given = [argument.replace("MODEL", model) for argument in arguments]
    runner = [] if arguments[0] == "pull" else ["--runner", "numpy"]
    command = [sys.executable, "-c", INTERRUPT_AT, moment, *given, *runner]
    done = subprocess.run(command, env=environment, input="hello", capture_output=True, text=True, timeout=WAIT_SECONDS)
    # 130 to a shell, either way: Python ends by the signal itself where it has passed through code that it compiled
    assert done.returncode in (130, -signal.SIGINT), done.stderr
    assert done.stderr.strip().splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["serve", "nowhere"], "hint: in the store: nothing; ullage pull smollm2 is a start"),
        (["serve", "smollm2"], "hint: run: ullage pull smollm2"),
        (["serve", "MODEL", "--kv-memory", "64M"], "hint: write 64MiB for powers of 1024"),
        (
            ["serve", "MODEL", "--runner", "numpy", "--port", "0", "--kv-memory", "900TiB"],
            "it would hold with --kv-memory ",
        ),
        (["serve", "MODEL", "--config", "CONFIG"], "hint: did you mean max_model_len?"),
        (["generate", "MODEL", "--prompt", "x", "--temperature", "3"], "error: temperature must be"),
        (
            ["generate", "MODEL", "--prompt", "x", "--temperature", "nan"],
            "error: --temperature must be a finite number",
        ),
        (["serve", "MODEL", "--served-model-name", ","], "gives the model an empty name"),
    ],
)
def test_a_persons_mistake_is_told_with_a_hint_and_code_2(model, environment, tmp_path, arguments, shown):
    config = tmp_path / "wrong.toml"
    config.write_text("max-model-length = 5\n")
    done = ullage(environment, *(a.replace("MODEL", model).replace("CONFIG", str(config)) for a in arguments))
    assert done.returncode == 2
    assert shown in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["pull", "smollm2"], ["list"], ["serve", "smollm2"], ["demo"]])
@pytest.mark.parametrize("home", ["/dev/null/x", "/proc/nowhere", "~nobody-of-this-name"])
def test_a_store_that_cannot_be_used_is_told(environment, home, arguments):
    done = ullage(environment | {"ULLAGE_HOME": home}, *arguments)
    assert done.returncode == (0 if arguments == ["list"] and "~" not in home else 2)
    assert "bug" not in done.stderr


def test_a_damaged_model_file_is_told(environment, tmp_path):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    done = ullage(environment, "generate", str(path), "--prompt", "x")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    "command", [["chat", "MODEL"], ["generate", "MODEL", "--prompt", "-"]], ids=["chat", "generate"]
)
@pytest.mark.parametrize(
    ("redirect", "shown"),
    [(r"printf '\377\376' |", "not text in UTF-8"), ("0<&-", "standard input is closed")],
    ids=["not UTF-8", "closed"],
)
def test_standard_input_that_cannot_be_read_is_told(environment, model, command, redirect, shown):
    words = " ".join([sys.executable, "-m", "ullage", *(model if word == "MODEL" else word for word in command)])
    line = f"{redirect} {words}" if redirect.endswith("|") else f"{words} {redirect}"
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 2
    assert shown in done.stderr
    assert "bug" not in done.stderr


def test_a_base_model_says_that_it_cannot_chat_before_anybody_types(environment, tmp_path):
    tiny = tiny_model("llama")
    base = write_gguf(tmp_path / "base.gguf", tiny, metadata={"tokenizer.chat_template": None})
    done = ullage(environment, "chat", str(base), text="hello")
    assert done.returncode == 2
    assert "no chat template" in done.stderr
