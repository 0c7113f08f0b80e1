"""A server whose weights take long to read in full is there all the same."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import httpx
import pytest
from tests.http_server import running_server, until
from tests.integration.test_http_embedded import make_engine
from tests.scripted_engine import ByteTokenizer

from ullage.service.config import ServiceConfig
from ullage.service.known_answer import KnownQuestion, PinnedAnswer
from ullage.service.probe import PIN_NOT_READ

BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "ignore_eos": True}


@pytest.mark.parametrize(("answer", "state"), [(None, "ready"), ((1, 2, 3, 4), "failed")])
async def test_while_weights_are_read_it_lives_and_answers_and_says_what_is_missing(
    tmp_path: Path, answer: tuple[int, ...] | None, state: str
) -> None:
    engine, digest = make_engine(), Future[str]()
    pinned = PinnedAnswer(tmp_path, digest, "fake")
    question = KnownQuestion.of(ByteTokenizer(), engine.max_request_tokens, pinned)
    config = ServiceConfig(port=0, drain_seconds=1.0)
    async with (
        running_server(engine, config=config, question=question) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        for _ in range(2):
            assert (await client.get("/health/live")).status_code == 200
            told = await client.get("/health/ready")
            assert (told.status_code, told.json()["status"]) == (503, "starting")
            assert "weights are still being read" in told.json()["reason"]
            assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        digest.set_result("aa")
        if answer is not None:
            pinned.write(question.request.prompt_token_ids, answer)
        prober = server.server._service.prober
        assert prober is not None
        await until(lambda: prober.fault_now() != PIN_NOT_READ)
        assert (await client.get("/health/ready")).json()["status"] == state
