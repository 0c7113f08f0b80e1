"""The real model is asked the question whose answer is known: learned, pinned, found again, missed when it differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
from tests.http_server import running_server

from ullage.engine.build import EngineOptions
from ullage.engine.launch import launch_engine
from ullage.models.weights_digest import begin_weights_digest, weights_digest
from ullage.service.config import ServiceConfig
from ullage.service.known_answer import KnownQuestion, PinnedAnswer
from ullage.service.served_model import ServedModel

OPTIONS = EngineOptions(kv_memory=64 << 20, max_model_len=1024)
CONFIG = ServiceConfig(port=0, drain_seconds=1.0)


async def readiness(path: Path, pins: Path) -> tuple[int, dict[str, object], str]:
    """Status and body of a server that has just started, and its metrics."""
    built = launch_engine(path, OPTIONS)
    digest = begin_weights_digest(path)
    digest.result()
    pinned = PinnedAnswer(pins, digest, built.runner_name)
    question = KnownQuestion.of(built.tokenizer, built.engine.max_request_tokens, pinned)
    model = ServedModel(("smollm2",), 0, built.tokenizer, built.chat_template)
    async with (
        running_server(built.engine, model, CONFIG, question=question) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        answer = await client.get("/health/ready")
        return answer.status_code, answer.json(), (await client.get("/metrics")).text


async def test_an_answer_is_pinned_to_the_weights_and_another_one_keeps_the_server_from_being_ready(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    path = model_path("smollm2")
    status, body, metrics = await readiness(path, tmp_path)
    assert (status, body["status"]) == (200, "ready")
    assert "ullage_generation_tokens_total 0.0" in metrics
    assert "ullage_prompt_tokens_total 0.0" in metrics
    assert 'ullage_known_answer_probes_total{result="right"} 1.0' in metrics
    assert 'ullage_step_stage_seconds_total{stage="' in metrics

    (pin,) = tmp_path.iterdir()
    assert pin.name == f"{weights_digest(path)}.json"
    (known,) = json.loads(pin.read_text()).values()
    assert len(known["answer"]) == 4
    assert (await readiness(path, tmp_path))[0] == 200

    pin.write_text(pin.read_text().replace(str(known["answer"][2]), "7"))
    status, body, _ = await readiness(path, tmp_path)
    assert (status, body["status"]) == (503, "failed")
    assert f"token 3 is {known['answer'][2]}, not 7" in str(body["reason"])
