"""What the gateway passes on, what it bounds, how it reloads and stops."""

from __future__ import annotations

import asyncio
import json
import signal

import httpx
import pytest
from tests.gateway_server import CHAT, running_gateway
from tests.http_server import until
from tests.scripted_upstream import Asked, ScriptedUpstream, scripted_upstreams

from ullage.base.errors import ConfigError


async def test_a_request_arrives_as_it_was_sent():
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups) as gateway:
        headers = {
            "authorization": "Bearer key",
            "x-request-id": "mine",
            "connection": "keep-alive, x-hop",
            "x-hop": "1",
            "te": "trailers",
            "accept-encoding": "gzip",
        }
        body = b'{"prompt" : "\\u00e4"}'
        response = await gateway.client.post("/v1/completions?a=%2F&b", content=body, headers=headers)
        assert response.headers["x-request-id"] == "mine"
        (asked,) = ups[0].asked
        assert (asked.method, asked.path, asked.body) == ("POST", "/v1/completions?a=%2F&b", body)
        assert asked.headers["authorization"] == "Bearer key"
        assert asked.headers["x-request-id"] == "mine"
        assert asked.headers["accept-encoding"] == "identity"
        assert asked.headers["host"] == ups[0].url.removeprefix("http://")
        assert not {"x-hop", "te", "connection"} & set(asked.headers)


async def test_a_request_without_an_id_gets_one():
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups) as gateway:
        response = await gateway.chat()
        assert response.headers["x-request-id"] == ups[0].asked[0].headers["x-request-id"] != ""
        assert "x-request-id" in (await gateway.client.get("/nowhere")).headers


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 501])
async def test_a_refusal_of_the_replica_is_passed_on_unchanged(status):
    refusal = {"error": {"message": "no", "type": "x", "param": None, "code": "y"}}

    async def script(asked: Asked) -> None:
        await asked.reply(status, refusal, {"retry-after": "3", "www-authenticate": "Bearer", "keep-alive": "5"})

    async with scripted_upstreams(ScriptedUpstream(script)) as ups, running_gateway(ups) as gateway:
        response = await gateway.chat()
        assert (response.status_code, response.json()) == (status, refusal)
        assert response.headers["retry-after"] == "3"
        assert response.headers["www-authenticate"] == "Bearer"
        assert "keep-alive" not in response.headers
        assert len(ups[0].asked) == 1


async def test_errors_that_are_the_requests_own_eject_nobody():
    async def own_deadline(asked: Asked) -> None:
        await asked.reply(504, {"error": {"code": "deadline_exceeded"}}, {"x-should-retry": "false"})

    async with scripted_upstreams(ScriptedUpstream(own_deadline)) as ups, running_gateway(ups) as gateway:
        for _ in range(10):
            assert (await gateway.chat()).status_code == 504
        assert await gateway.states() == {"a": "up"}
        assert gateway.outcomes("a") == {"refused": 10}


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"no http\r\n\r\n", 400, None),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: %b\r\n\r\n" % (b"x" * 100_000), 431, "header_too_large"),
    ],
)
async def test_what_is_no_request_is_told_so_in_the_apis_shape_and_counted(sent, status, code):
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert b"x-request-id: " in head
        assert json.loads(body)["error"]["code"] == code
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(f"{gateway.url}/metrics")).text
        assert f'ullage_gateway_connection_refusals_total{{code="{code or "invalid_request_error"}"}} 1.0' in metrics


@pytest.mark.parametrize(
    "target",
    [
        "/nowhere",
        "/admin/reload",
        "/v1/../admin/reload",
        "/v1/%2e%2e/admin/reload",
        "/v1/./models",
        "/v1/completions#",
        "/v1/completions?a#b",
    ],
)
async def test_other_addresses_are_not_reached(target):
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 404")
        assert b'"unknown_url"' in answer
        assert ups[0].asked == []


async def test_the_log_has_no_address_and_no_method_as_a_client_wrote_it(caplog):
    caplog.set_level("INFO", "ullage.gateway")
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups) as gateway:
        for method, path in [
            ("POST", "/v1/completions?key=sk-secret"),
            ("POST", "/v1/sk-secret"),
            ("GET", "/sk-secret"),
            ("SK-SECRET", "/health/live"),
        ]:
            await gateway.client.request(method, path)
    said = [record.getMessage().split(" 200 ")[0].split(" 404 ")[0] for record in caplog.records]
    for line in ("POST /v1/completions", "POST /v1/{path}", "GET an unknown address"):
        assert line in said
    assert any(line.startswith("OTHER /health/live") for line in said)
    assert "secret" not in caplog.text.lower()


async def test_bodies_beyond_their_bound_are_refused():
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups, max_body_bytes=100) as gateway:
        assert (await gateway.client.post("/v1/completions", content=b"x" * 100)).status_code == 200
        assert (await gateway.client.post("/v1/completions", content=b"x" * 101)).status_code == 413

        async def pieces():
            for _ in range(11):
                yield b"x" * 10

        assert (await gateway.client.post("/v1/completions", content=pieces())).status_code == 413
        assert len(ups[0].asked) == 1


async def test_bodies_that_do_not_arrive_and_headers_that_do_not_end_are_given_up():
    settings = {"body_timeout_seconds": 0.1, "header_timeout_seconds": 0.1}
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups, **settings) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        for sent, answer in [
            (b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{", b"HTTP/1.1 408"),
            (b"GET /v1/models HTTP/1.1\r\nhost", b""),
        ]:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            async with asyncio.timeout(5):
                assert (await reader.read(12)) == answer
            writer.close()


async def test_one_connection_or_request_too_many_is_answered_429():
    async def silent(asked: Asked) -> None:
        await asked.client_has_left()

    settings = {"max_concurrent_requests": 1, "max_connections": 3}
    async with scripted_upstreams(ScriptedUpstream(silent)) as ups, running_gateway(ups, **settings) as gateway:
        asking = asyncio.create_task(gateway.chat())
        await until(lambda: ups[0].asked)
        response = await gateway.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
        host, port = gateway.url.removeprefix("http://").split(":")
        kept = await asyncio.open_connection(host, int(port))
        reader, writer = await asyncio.open_connection(host, int(port))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 429")
        assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "queue_full"
        for one in (writer, kept[1]):
            one.close()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_client_that_reads_nothing_is_given_up():
    left = asyncio.Event()

    async def endless(asked: Asked) -> None:
        await asked.stream()
        try:
            while True:
                await asked.chunk(b"data: " + b"x" * 60000 + b"\n\n")
        finally:
            left.set()

    settings = {"send_timeout_seconds": 0.2}
    async with scripted_upstreams(ScriptedUpstream(endless)) as ups, running_gateway(ups, **settings) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps({**CHAT, "stream": True}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        async with asyncio.timeout(10):
            await left.wait()
        await until(lambda: gateway.outcomes("a") == {"abandoned": 1})
        writer.close()


async def test_a_hangup_signal_reads_the_replicas_anew_and_a_bad_file_changes_nothing(caplog):
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups) as gateway:
        await gateway.chat()
        gateway.wanted[0] = type(gateway.wanted[0])("a", ups[0].url, 7.0)
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: gateway.gateway.replicas[0].config.weight == 7.0)
        assert gateway.outcomes("a") == {"ok": 1}  # it is the same replica

        def bad():
            raise ConfigError("nonsense")

        gateway.gateway._read_replicas = bad
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: "the old replicas stay: nonsense" in caplog.text)
        assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_lets_streams_end_and_ends_the_rest_with_an_error(in_time):
    release = asyncio.Event()

    async def script(asked: Asked) -> None:
        await asked.stream(b"data: 1\n\n")
        await release.wait()
        await asked.chunk(b"data: [DONE]\n\n")
        await asked.end()

    drain = 20.0 if in_time else 0.2
    async with (
        scripted_upstreams(ScriptedUpstream(script)) as ups,
        running_gateway(ups, drain_seconds=drain) as gateway,
    ):
        await gateway.client.get("/health/live")
        streaming = asyncio.create_task(gateway.stream())
        await until(lambda: ups[0].asked)
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: gateway.gateway.in_work.stopping)
        async with httpx.AsyncClient(base_url=gateway.url) as client:
            assert (await client.get("/health/ready")).json()["status"] == "draining"
            refused = await client.post("/v1/chat/completions", json=CHAT)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
        if in_time:
            release.set()
        text = await streaming
        await gateway.task
        assert gateway.server.cut_off is not in_time
        assert text.endswith("data: [DONE]\n\n") is in_time
        assert ('"server_stopping"' in text) is not in_time


async def test_metrics_have_only_names_and_fixed_words_as_labels():
    async with scripted_upstreams(ScriptedUpstream()) as ups, running_gateway(ups) as gateway:
        for index in range(3):
            await gateway.client.post(f"/v1/{index}", headers={"x-request-id": f"id-{index}"})
        text = (await gateway.client.get("/metrics")).text
        assert 'ullage_gateway_requests_total{outcome="ok",replica="a"} 3.0' in text
        assert 'ullage_gateway_outstanding{replica="a"} 0.0' in text
        assert 'ullage_gateway_state{replica="a",state="up"} 1.0' in text
        assert 'ullage_gateway_answers_total{status="200"} 3.0' in text
        assert "id-" not in text
