"""A real ``ullage serve`` with keys: nothing is open beside liveness, and no key is found anywhere afterwards."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.model_fixtures import tiny_model, write_gguf

from ullage.access.keys import KeyStore

WAIT_SECONDS = 60
ROUTES = (
    "/v1/models",
    "/v1/models/tiny",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/ledger",
    "/v1/usage",
    "/tokenize",
    "/detokenize",
    "/metrics",
    "/health",
    "/health/ready",
    "/openapi.json",
    "/admin/reload",
    "/docs",
    "/",
    "*",
)
SPELLINGS = (
    "//v1/models",
    "/V1/models",
    "/v1/../metrics",
    "/v1/models/",
    "/%76%31/models",
    "/health/live/",
    "//health/live",
    "/health/live/../../v1/models",
    "/health/live%2f..%2f..%2fmetrics",
    "/health/%6c%69ve/",
    "/health/live;/metrics",
)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        return json.loads(self.body)["error"]["code"] if self.status >= 400 and self.body else None


@dataclass(frozen=True)
class Served:
    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    key: str
    """Of all route groups."""

    def ask(self, method: str, path: str, key: str | None = None, body: object = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, headers | {"content-type": "application/json"})
        answer = connection.getresponse()
        told = Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return told

    def processes(self) -> list[int]:
        """The server's, and its children's."""
        found = [self.process.pid]
        for pid in found:
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in path.read_text("ascii").split()]
        return found

    def written(self) -> bytes:
        """All that it left on the disk, databases of keys apart, and all that other users may see of its processes."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and "keys.db" not in path.name]
        for pid in self.processes():
            files += [Path(f"/proc/{pid}/cmdline"), Path(f"/proc/{pid}/environ")]
        return b"".join(path.read_bytes() for path in files)


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[Served]:
    _, key = KeyStore(folder / "keys.db").create("acme", "", ("inference", "observe", "admin"))
    model = write_gguf(folder / "tiny.gguf", tiny_model("llama"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")}
    environment |= {"ULLAGE_HOME": str(folder / "home"), "PYTHONPATH": ":".join(sys.path), "COLUMNS": "500"}
    command = [sys.executable, "-m", "ullage", "serve", str(model), "--served-model-name=tiny", "--port=0"]
    command += ["--runner=numpy", "--kv-memory=1MiB", f"--api-keys-file={folder / 'keys.db'}", *flags]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=out, cwd=folder, start_new_session=True
        )
    assert process.stdout is not None
    try:
        shown = next((line for line in process.stdout if line.startswith(b"serving on")), b"")
        assert shown, log.read_text()
        yield Served(folder, int(shown.split()[2].rsplit(b":", 1)[1].removesuffix(b"/v1")), process, key)
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        process.wait(WAIT_SECONDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server")) as server:
        yield server


def test_every_route_that_is_served_is_tried(server):
    listed = json.loads(server.ask("GET", "/openapi.json", server.key).body)["paths"]
    assert {path.replace("{model}", "tiny") for path in listed} <= {*ROUTES, "/health/live"}


@pytest.mark.parametrize("path", [*ROUTES, *SPELLINGS])
def test_no_spelling_of_an_address_gets_round_the_key(server, path):
    wrong = server.key[:-1] + ("0" if server.key[-1] != "0" else "1")
    for key in (None, wrong, server.key[:-1], server.key + "0", server.key.upper(), "x" * 100):
        for method in ("GET", "HEAD", "POST", "OPTIONS", "PUT"):
            answer = server.ask(method, path, key)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), (method, key)
            assert method == "HEAD" or answer.code == "invalid_api_key"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_the_scheme_may_be_spelled_in_any_case(server, scheme):
    assert server.ask("GET", "/v1/models", authorization=f"{scheme} {server.key}").status == 200


def test_a_key_counts_in_its_header_only(server):
    for name in ("key", "api_key", "access_token", "token"):
        assert server.ask("GET", f"/v1/models?{name}={server.key}").status == 401
    for headers in ({"x-api-key": server.key}, {"cookie": f"key={server.key}"}, {"proxy-authorization": server.key}):
        assert server.ask("GET", "/v1/models", **headers).status == 401


def test_liveness_is_open(server):
    assert server.ask("GET", "/health/live").status == 200


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def talkative_server(tmp_path_factory) -> Iterator[Served]:
    """It writes all that it can write, prompts apart."""
    folder = tmp_path_factory.mktemp("talkative")
    (folder / "limits.toml").write_text("[tenants.limited]\nrequests_per_minute = 1\n")
    flags = ("--log-level=debug", "--log-format=json", f"--audit-log-file={folder / 'audit.log'}")
    with served(folder, *flags, f"--limits-file={folder / 'limits.toml'}") as server:
        yield server


def test_a_key_is_found_nowhere_whatever_becomes_of_its_request(talkative_server):
    server = talkative_server
    store = KeyStore(server.folder / "keys.db")
    _, expired = store.create("acme", "", ("inference",), expires_at=1.0)
    revoked_key, revoked = store.create("acme", "", ("inference",))
    store.revoke(revoked_key.id)
    _, limited = store.create("limited", "", ("inference",))
    _, narrow = store.create("acme", "", ("observe",), models=("other",))
    wrong = server.key[:-8] + "00000000"
    answers = [
        server.ask("POST", "/v1/chat/completions", wrong, CHAT),
        server.ask("POST", "/v1/chat/completions", expired, CHAT),
        server.ask("POST", "/v1/chat/completions", revoked, CHAT),
        server.ask("POST", "/v1/chat/completions", authorization=f"Bearer {server.key} {server.key}"),
        server.ask("POST", "/v1/chat/completions", authorization=f"Basic {server.key}"),
        server.ask("GET", f"/v1/models?api_key={server.key}"),
        server.ask("POST", "/v1/chat/completions", narrow, CHAT),
        server.ask("POST", "/v1/chat/completions", limited, CHAT),
        server.ask("POST", "/v1/chat/completions", limited, CHAT),
        server.ask("POST", "/v1/chat/completions", server.key, CHAT | {"model": 7}),
        server.ask("POST", "/v1/chat/completions", server.key, CHAT | {"temperature": 9}),
    ]
    assert [answer.status for answer in answers] == [401] * 6 + [403, 200, 429, 400, 400]
    assert len({answer.body for answer in answers[:6]}) == 1
    (engine,) = [pid for pid in server.processes() if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(engine, signal.SIGKILL)
    failed = server.ask("POST", "/v1/chat/completions", server.key, CHAT | {"max_tokens": 100})
    assert failed.status == 503
    answers += [failed, server.ask("GET", "/metrics", server.key)]
    told = b"".join(answer.body + repr(answer.headers).encode() for answer in answers) + server.written()
    for key in (server.key, wrong, expired, revoked, limited, narrow):
        secret = key.rsplit("-", 1)[1].encode()
        assert secret not in told
        assert secret[:16] not in told
    assert b"hello" not in (server.folder / "audit.log").read_bytes()
    assert b"hello" not in (server.folder / "server.log").read_bytes()
    codes = [json.loads(line)["error"] for line in (server.folder / "audit.log").read_text().splitlines()]
    assert codes[:6] == ["invalid_api_key"] * 6
