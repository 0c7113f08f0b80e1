"""``ullage gateway`` before real servers, and told to read its file anew and to stop."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

import httpx
import openai
import pytest
from tests.gateway_program import gateway_program, write_replicas
from tests.gateway_server import CHAT
from tests.http_server import running_server
from tests.scripted_engine import ScriptedEngine

from ullage.base.errors import ConfigError
from ullage.cli.gateway import gateway


async def names(client: httpx.AsyncClient) -> dict[str, str]:
    replicas = (await client.get("/gateway/replicas")).json()["replicas"]
    return {replica["name"]: replica["state"] for replica in replicas}


async def test_a_client_of_openai_is_served_through_the_gateway(tmp_path):
    path = tmp_path / "replicas.toml"
    async with running_server(ScriptedEngine()) as one, running_server(ScriptedEngine()) as two:
        write_replicas(path, {"one": one.url, "two": two.url})
        async with (
            gateway_program(path) as program,
            openai.AsyncOpenAI(base_url=f"{program.url}/v1", api_key="none", max_retries=0) as through,
            openai.AsyncOpenAI(base_url=f"{one.url}/v1", api_key="none", max_retries=0) as directly,
        ):
            assert [model.id async for model in through.models.list()] == [
                model.id async for model in directly.models.list()
            ]
            expected = await directly.chat.completions.create(**CHAT)
            for _ in range(2):
                answer = await through.chat.completions.create(**CHAT)
                assert answer.choices == expected.choices
            stream = await through.chat.completions.create(**CHAT, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == expected.choices[0].message.content
            with pytest.raises(openai.NotFoundError) as refused:
                await through.chat.completions.create(**{**CHAT, "model": "other"})
            assert refused.value.code == "model_not_found"
            async with httpx.AsyncClient(base_url=program.url) as client:
                assert await names(client) == {"one": "up", "two": "up"}


async def test_signals_read_the_file_anew_and_stop_the_program(tmp_path):
    path = tmp_path / "replicas.toml"
    log = tmp_path / "gateway.log"
    async with running_server(ScriptedEngine()) as one, running_server(ScriptedEngine()) as two:
        write_replicas(path, {"one": one.url})
        async with gateway_program(path) as program, httpx.AsyncClient(base_url=program.url) as client:
            path.write_text("[[replicas")
            program.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(10):
                while "the old replicas stay" not in log.read_text():
                    await asyncio.sleep(0.01)
            assert await names(client) == {"one": "up"}
            write_replicas(path, {"two": two.url})
            program.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(10):
                while await names(client) != {"two": "up"}:
                    await asyncio.sleep(0.01)
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            program.process.send_signal(signal.SIGTERM)
            assert await program.process.wait() == 0
    assert "Traceback" not in log.read_text()
    assert "POST /v1/chat/completions 200" in log.read_text()


async def test_a_log_that_nobody_reads_holds_no_request_up(tmp_path):
    path, log = tmp_path / "replicas.toml", tmp_path / "gateway.log"
    write_replicas(path, {"one": "http://127.0.0.1:1"})
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    room = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    async with gateway_program(path) as program, httpx.AsyncClient(base_url=program.url, timeout=20) as client:
        try:
            for _ in range(2 * room // len("INFO ullage.gateway.door: GET an unknown address 404")):
                assert (await client.get("/nowhere")).status_code == 404
        finally:
            os.close(reader)


def test_without_its_client_library_the_command_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ConfigError, match=r"pip install 'ullage\[gateway\]'"):
        gateway.main([str(tmp_path / "replicas.toml")], standalone_mode=False)


@pytest.mark.parametrize(("flags", "complaint"), [((), "can't read"), (("--ejection-error-rate", "2"), "up to 1")])
def test_what_cannot_be_honoured_is_refused_at_the_start(flags, complaint, tmp_path: Path):
    with pytest.raises(ConfigError, match=complaint):
        gateway.main([str(tmp_path / "none.toml"), *flags], standalone_mode=False)
