"""TLS and mutual TLS, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import warnings
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
from tests.certificates import make_authority, make_certificate
from tests.http_server import events_of, running_server, until
from tests.scripted_engine import ScriptedEngine

from ullage.service.config import ServiceConfig

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


class Files:
    """Of one server, and of what its clients trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = make_authority()
        self.ca, _ = self.authority.write(folder, "authority")
        self.cert, self.key = make_certificate(self.authority).write(folder, "server")

    def config(self, **others: str) -> ServiceConfig:
        return ServiceConfig(port=0, drain_seconds=1.0, tls_cert_file=self.cert, tls_key_file=self.key, **others)

    def trusting(self, *client: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if client:
            context.load_cert_chain(*client)
        return context

    def client_certificate(self, name: str) -> tuple[str, str]:
        """Of an authority of that name."""
        authority = make_authority(name)
        authority.write(self._folder, name)
        return make_certificate(authority, "client").write(self._folder, f"{name}-client")


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def make_client(context: ssl.SSLContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=context, trust_env=False)


async def test_answers_and_streams_come_over_https_to_who_trusts_the_authority(files):
    async with running_server(ScriptedEngine(), config=files.config()) as server:
        assert server.url.startswith("https://127.0.0.1:")
        async with make_client(files.trusting()) as client:
            whole = await client.post(f"{server.url}/v1/chat/completions", json=CHAT)
            stream = await client.post(f"{server.url}/v1/chat/completions", json=CHAT | {"stream": True})
        assert whole.json()["choices"][0]["finish_reason"] == "stop"
        assert events_of(stream.text)[-1] == "[DONE]"
        async with make_client(ssl.create_default_context()) as stranger:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.get(f"{server.url}/health/live")


async def test_openai_s_client_speaks_https(files):
    async with (
        running_server(ScriptedEngine(), config=files.config()) as server,
        openai.AsyncOpenAI(
            api_key="none", base_url=f"{server.url}/v1", http_client=make_client(files.trusting())
        ) as client,
    ):
        answer = await client.chat.completions.create(**CHAT)
        chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
    assert answer.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"


async def test_plain_http_gets_no_answer_and_disturbs_nobody(files, caplog):
    async with running_server(ScriptedEngine(), config=files.config()) as server:
        async with httpx.AsyncClient() as plain:
            with pytest.raises(httpx.TransportError):
                await plain.get(server.url.replace("https://", "http://") + "/health/live")
        async with make_client(files.trusting()) as client:
            assert (await client.get(f"{server.url}/health/live")).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_leaves_over_tls_frees_its_request(files):
    engine = ScriptedEngine()
    engine.pause_after = 1
    async with running_server(engine, config=files.config()) as server, make_client(files.trusting()) as client:
        asking = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=CHAT))
        await until(lambda: engine.num_open == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: engine.num_open == 0)


async def test_a_body_that_is_too_large_is_refused_over_tls(files):
    async with (
        running_server(ScriptedEngine(), config=files.config()) as server,
        make_client(files.trusting()) as client,
    ):
        answer = await client.post(f"{server.url}/v1/completions", content=b" " * (9 << 20))
        assert answer.status_code == 413
        assert (await client.get(f"{server.url}/health/live")).status_code == 200


async def test_a_handshake_must_come_in_the_time_of_a_header(files):
    config = replace(files.config(), header_timeout_seconds=0.1)
    async with running_server(ScriptedEngine(), config=config) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_tls_1_1_is_refused(files):
    async with running_server(ScriptedEngine(), config=files.config()) as server:
        context = files.trusting()
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]), ssl=context)


async def test_clients_need_a_certificate_of_the_right_authority(files, tmp_path):
    good, bad = files.client_certificate("people"), files.client_certificate("strangers")
    config = files.config(tls_client_ca_file=str(tmp_path / "people.crt"))
    async with running_server(ScriptedEngine(), config=config) as server:
        async with make_client(files.trusting(*good)) as client:
            assert (await client.post(f"{server.url}/v1/chat/completions", json=CHAT)).status_code == 200
        for context in (files.trusting(), files.trusting(*bad)):
            async with make_client(context) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(f"{server.url}/health/live")


async def test_a_reload_serves_a_new_certificate_and_refuses_a_bad_one(files, tmp_path):
    async with running_server(ScriptedEngine(), config=files.config()) as server:

        async def serial() -> int:
            port = int(server.url.rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.trusting())
            number = int(writer.get_extra_info("peercert")["serialNumber"], 16)
            writer.close()
            await writer.wait_closed()
            return number

        first = await serial()
        os.unlink(files.key)
        new = make_certificate(files.authority)
        new.write(tmp_path, "server")
        signal.raise_signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while await serial() == first:
                await asyncio.sleep(0.01)
        assert await serial() == new.cert.serial_number
        make_certificate(files.authority, days=-1).write(tmp_path, "server")
        with pytest.raises(Exception, match="has expired"):
            await server.server._service.reloads.reload()
        assert await serial() == new.cert.serial_number


async def test_a_reload_takes_over_whose_clients_may_connect(files, tmp_path):
    old, new = files.client_certificate("people"), files.client_certificate("others")
    named = tmp_path / "people.crt"
    config = files.config(tls_client_ca_file=str(named))
    async with running_server(ScriptedEngine(), config=config) as server:
        named.write_bytes((tmp_path / "others.crt").read_bytes())
        await server.server._service.reloads.reload()
        async with make_client(files.trusting(*new)) as client:
            assert (await client.get(f"{server.url}/health/live")).status_code == 200
        async with make_client(files.trusting(*old)) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"{server.url}/health/live")
