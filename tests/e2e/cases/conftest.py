"""One real server for each configuration that the cases need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.openai_api import Api, api_of
from tests.ullage_server import UllageServer, ullage_server


@pytest.fixture(scope="session")
def smollm2(model_path: Callable[[str], Path]) -> Path:
    return model_path("smollm2")


@pytest.fixture(scope="session")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UllageServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--max-model-len=4096", "--kv-memory=256MiB", "--tool-format=hermes", "--target-itl-ms=0")
    with ullage_server(smollm2, log, *flags) as server:
        yield server


@pytest.fixture(scope="session")
def small_pool_server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UllageServer]:
    """20 blocks of 32 tokens."""
    log = tmp_path_factory.mktemp("small-pool") / "log"
    with ullage_server(smollm2, log, "--kv-memory=14400KiB", "--max-model-len=4096") as server:
        yield server


@pytest.fixture
async def api(server: UllageServer) -> AsyncIterator[Api]:
    async with api_of(server.url) as api:
        yield api


@pytest.fixture
async def small_pool_api(small_pool_server: UllageServer) -> AsyncIterator[Api]:
    async with api_of(small_pool_server.url) as api:
        yield api
