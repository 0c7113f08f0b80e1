"""``ullage top`` against a real server, and against what is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.certificates import make_authority, make_certificate
from tests.http_server import running_server
from tests.integration.test_http_embedded import make_engine

from ullage.access.config import AccessConfig
from ullage.access.keys import KeyStore
from ullage.cli.main import run
from ullage.cli.top import read
from ullage.service.config import ServiceConfig


async def test_once_prints_a_frame_of_a_running_server(capsys):
    async with running_server(make_engine()) as server:
        code = await asyncio.to_thread(run, ["top", server.url, "--once"])
    assert code == 0
    text = capsys.readouterr().out
    assert "0 running, 0 waiting" in text
    assert "kv_pool" in text
    assert "free" in text


@pytest.mark.parametrize(
    ("url", "message", "code"),
    [
        ("http://127.0.0.1:9", "doesn't answer", 1),
        ("ftp://h", "no address of a server", 2),
        ("http://[", "doesn't answer", 1),
    ],
)
def test_what_is_no_server_is_told_in_one_line(url, message, code, capsys):
    assert run(["top", url]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


async def test_another_program_is_told_apart():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reading = await asyncio.to_thread(read, f"http://127.0.0.1:{port}")
    assert reading.body is None
    assert "isn't a server of this release" in reading.trouble


async def test_a_key_and_a_certificate_open_a_server_that_asks_for_both(tmp_path, monkeypatch, capsys):
    _, key = KeyStore(tmp_path / "keys.db").create("acme", "", ("observe",))
    (tmp_path / "key").write_text(f"{key}\n")
    authority = make_authority()
    ca, _ = authority.write(tmp_path, "authority")
    cert, cert_key = make_certificate(authority).write(tmp_path, "server")
    both = tmp_path / "client.pem"
    both.write_text("".join(Path(path).read_text() for path in make_certificate(authority).write(tmp_path, "client")))
    config = ServiceConfig(port=0, tls_cert_file=cert, tls_key_file=cert_key, tls_client_ca_file=ca)
    access = AccessConfig(api_keys_file=str(tmp_path / "keys.db"))
    async with running_server(make_engine(), config=config, access=access) as server:

        async def top(*flags):
            code = await asyncio.to_thread(run, ["top", server.url, "--once", *flags])
            written = capsys.readouterr()
            assert key not in written.out + written.err
            return code, written.out + written.err

        flags = (f"--ca-file={ca}", f"--client-cert-file={both}")
        assert (await top(*flags, f"--api-key-file={tmp_path / 'key'}"))[0] == 0
        assert (await top(f"--api-key-file={tmp_path / 'key'}"))[0] == 1
        code, text = await top(*flags)
        assert (code, "ULLAGE_API_KEY" in text) == (1, True)
        monkeypatch.setenv("ULLAGE_API_KEY", key)
        assert (await top(*flags))[0] == 0


@pytest.mark.parametrize("flag", ["--api-key-file", "--ca-file", "--client-cert-file"])
def test_files_that_open_nothing_are_refused(tmp_path, flag, capsys):
    (tmp_path / "empty").touch()
    assert run(["top", f"{flag}={tmp_path / 'empty'}"]) == 2
    assert str(tmp_path / "empty") in capsys.readouterr().err
