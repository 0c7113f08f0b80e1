"""SEC: no address without its key however it is spelled, and no key in any place it doesn't belong."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.openai_api import CHAT, COMPLETIONS, accepted, api_of
from tests.scripted_engine import ScriptedEngine, scripted_model
from tests.ullage_server import UllageServer, ullage_server

from ullage.access import keys as keys_module
from ullage.access.keys import KeyStore
from ullage.base.errors import AuthenticationError
from ullage.service.app import create_app
from ullage.service.config import ServiceConfig

OPEN = {"/health/live"}


@dataclass(frozen=True)
class KeyedServer:
    server: UllageServer
    store: KeyStore
    key: str
    limited: str
    """A key of a tenant with one request a minute."""


@pytest.fixture(scope="module")
def keyed(smollm2, tmp_path_factory) -> Iterator[KeyedServer]:
    folder: Path = tmp_path_factory.mktemp("keyed")
    store = KeyStore(folder / "keys.db")
    (folder / "limits.toml").write_text("[tenants.limited]\nrequests_per_minute = 1\n")
    flags = [f"--api-keys-file={folder / 'keys.db'}", f"--limits-file={folder / 'limits.toml'}", "--log-level=debug"]
    with ullage_server(smollm2, folder / "log", "--max-model-len=1024", "--kv-memory=64MiB", *flags) as server:
        groups = ("inference", "observe", "admin")
        yield KeyedServer(server, store, store.create("acme", "", groups)[1], store.create("limited", "", groups)[1])


@dataclass(frozen=True)
class RawAnswer:
    status: int
    head: str
    body: str


async def raw(server: UllageServer, method: str, target: str, *headers: str) -> RawAnswer:
    """Not a byte of the target is tidied up."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    lines = [f"{method} {target} HTTP/1.1", "host: x", "connection: close", "content-length: 0", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    text = (await reader.read()).decode()
    writer.close()
    head, _, body = text.partition("\r\n\r\n")
    return RawAnswer(int(head.split()[1]), head.lower(), body)


def known_paths() -> set[str]:
    app = create_app(ScriptedEngine(), scripted_model(), ServiceConfig())
    return {route.path.replace("{name:path}", "smollm2") for route in app.routes}


SPELLINGS = [
    "//v1/models",
    "/V1/models",
    "/v1/../metrics",
    "/v1/models/",
    "/%76%31/models",
    "/v1/./models",
    "/v1%2fmodels",
    "/health/live/../../v1/models",
    "/health/live/",
    "//health/live",
    "/health/live;/v1/models",
    "/health/live%00",
    "/v1/models?path=/health/live",
    "/nothing",
    "http://x/v1/models",
    "*",
]


def bad_headers(key: str) -> dict[str, list[str]]:
    return {
        "none": [],
        "wrong": ["authorization: Bearer nonsense"],
        "a prefix": [f"authorization: Bearer {key[:-1]}"],
        "an extension": [f"authorization: Bearer {key}0"],
        "another scheme": [f"authorization: Basic {key}"],
        "no scheme": [f"authorization: {key}"],
        "another header": [f"x-api-key: {key}"],
        "twice": [f"authorization: Bearer {key}", f"authorization: Bearer {key}"],
        "twice, one wrong": ["authorization: Bearer x", f"authorization: Bearer {key}"],
    }


async def test_every_address_needs_a_key_however_it_is_spelled(keyed):
    assert len(known_paths()) >= 10
    for target in [*sorted(known_paths() - OPEN), *SPELLINGS]:
        for method in ("GET", "HEAD", "POST"):
            for name, headers in bad_headers(keyed.key).items():
                answer = await raw(keyed.server, method, target, *headers)
                where = f"{method} {target}, {name}"
                assert answer.status == 401 or (answer.status == 400 and target == "*"), where
                if answer.status == 401:
                    assert "www-authenticate: bearer" in answer.head, where
                    assert method == "HEAD" or '"code":"invalid_api_key"' in answer.body, where
    assert (await raw(keyed.server, "GET", f"/v1/models?api_key={keyed.key}&key={keyed.key}")).status == 401
    for target in OPEN:
        assert (await raw(keyed.server, "GET", target)).status == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
async def test_a_key_opens_with_its_scheme_in_any_case(keyed, scheme):
    answer = await raw(keyed.server, "GET", "/v1/models", f"authorization: {scheme} {keyed.key}")
    assert answer.status == 200


def test_every_wrong_key_costs_the_same_work(tmp_path, monkeypatch):
    """Unknown, expired, revoked, or wrong from the first or only in the last character: one row is looked for, one
    secret hashed, one pair of digests compared in constant time."""
    store = KeyStore(tmp_path / "keys.db")
    _, right = store.create("acme", "", ("inference",))
    _, expired = store.create("acme", "", ("inference",), time.time() - 1)
    last = "0" if right[-1] != "0" else "1"
    head, _, secret = right.rpartition("-")
    work: list[tuple[str, int]] = []
    digest, compare = keys_module._digest, keys_module.hmac.compare_digest
    monkeypatch.setattr(keys_module, "_digest", lambda text: work.append(("hashed", len(text))) or digest(text))
    monkeypatch.setattr(
        keys_module.hmac, "compare_digest", lambda a, b: work.append(("compared", len(a) + len(b))) or compare(a, b)
    )
    done = []
    for text in (right[:-1] + last, f"{head}-{last * len(secret)}", f"ullage-{'0' * 16}-{secret}", expired):
        work.clear()
        with pytest.raises(AuthenticationError):
            store.check(text)
        done.append(list(work))
    assert all(steps == [("hashed", len(secret)), ("compared", 64)] for steps in done)


async def test_a_key_is_told_nowhere(keyed):
    """Its secret is the marker that is looked for, whole and but for its last character."""
    secret = keyed.key.rpartition("-")[2]
    expired = keyed.store.create("acme", "", ("inference",), time.time() - 1)[1]
    ask = {"messages": [{"role": "user", "content": "the prompt is a secret too: KESTREL"}], "max_tokens": 4}
    told: list[str] = []

    async def tell(
        key: str | None, status: int, *headers: tuple[str, str], target: str = CHAT, **fields: object
    ) -> None:
        async with api_of(keyed.server.url, key) as api:
            answer = await api.client.post(target, json={"model": "smollm2", **ask, **fields}, headers=[*headers])
        assert answer.status_code == status, answer.text
        told.append(answer.text + str(answer.headers))

    await tell(keyed.key, 200)
    await tell(keyed.key[:-1], 401)
    await tell(expired, 401)
    await tell(None, 401, ("authorization", f"Bearer  \t{keyed.key} x"))
    await tell(None, 401, ("authorization", keyed.key))
    await tell(None, 401, target=f"{CHAT}?api_key={keyed.key}")
    await tell(None, 401, target=f"/{keyed.key}/chat")
    await tell(keyed.key, 404, target=f"/v1/{secret}")
    await tell(keyed.key, 400, temperature=9)
    await tell(keyed.limited, 200)
    await tell(keyed.limited, 429)

    async with api_of(keyed.server.url, keyed.key) as api:
        async with api.open_stream(COMPLETIONS, prompt="a", max_tokens=900, ignore_eos=True) as answer:
            chunks = answer.aiter_text()
            await anext(chunks)
            engine_environment = places(keyed.server.engine_pid)
            os.kill(keyed.server.engine_pid, signal.SIGKILL)
            rest = "".join([chunk async for chunk in chunks])
        assert '"error"' in rest
        assert "[DONE]" not in rest
        told.append(rest)
        while (await api.client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.1)
        told.append((await api.client.get("/metrics")).text)
        told.append(str(accepted(await api.client.get("/v1/ledger"))))
    told += [keyed.server.log(), places(keyed.server.process.pid), engine_environment]
    for key in (keyed.key, keyed.limited, expired):
        marker = key.rpartition("-")[2][:-1]
        for text in told:
            assert marker not in text, re.sub(f".*(.{{200}}){marker}", r"\1", text, flags=re.DOTALL)[:300]
    assert all("KESTREL" not in text for text in told[1:])


def places(pid: int) -> str:
    return "".join(Path(f"/proc/{pid}/{name}").read_text("utf-8", errors="replace") for name in ("cmdline", "environ"))
