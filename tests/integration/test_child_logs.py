"""What the engine process logs comes out with the service's own lines: whole, under its own name, at its own level."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.engine_requests import collect, request
from tests.fake_engine_process import RAISE_TOKEN

from ullage.base.errors import EngineError
from ullage.engine.build import EngineOptions
from ullage.engine.process import EngineProcess
from ullage.engine.wire import Opening


async def test_a_failure_in_the_child_is_one_record_with_its_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = EngineProcess(Opening(f"serve:{tmp_path}/starts", EngineOptions()), 32, module="tests.fake_engine_process")
    engine.load()
    await engine.start()
    outputs = await collect(engine.submit(request([1, RAISE_TOKEN], 5)))
    assert outputs[-1].finish_reason == "error"
    await engine.stop()
    (record,) = [r for r in caplog.records if r.name == "ullage.engine.engine_loop"]
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("engine process ")
    assert record.getMessage().endswith("the engine failed")
    assert record.exc_text is not None
    assert record.exc_text.splitlines()[-1] == "ZeroDivisionError: the device fell off"


async def test_what_is_no_record_is_a_warning_and_the_last_words_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = EngineProcess(Opening(f"exit:{tmp_path}/starts", EngineOptions()), 32, module="tests.fake_engine_process")
    with pytest.raises(EngineError, match="exit code 3: the loader fell over"):
        engine.load()
    assert [record.levelname for record in caplog.records if "fell over" in record.getMessage()] == ["WARNING"]
