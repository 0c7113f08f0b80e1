"""The parts of a server: an engine in a process of its own, and in this one what its doors need besides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ullage.engine.build import BuiltEngine, EngineOptions, check_tokenizer, scheduler_config

if TYPE_CHECKING:
    from ullage.engine.process import Supervision


def launch_engine(model_path: Path, options: EngineOptions, supervision: Supervision | None = None) -> BuiltEngine:
    """As ``build_engine``, with the engine in a process of its own. Both processes load at the same time.

    :raises ModelFileError, ConfigError, PlanError, EngineError: as ``build_engine``; no process is left then
    """
    from ullage.engine.process import EngineProcess
    from ullage.engine.wire import Opening
    from ullage.models.chat_template import ChatTemplate
    from ullage.models.open_model import open_model

    max_requests = scheduler_config(options, max_model_len=options.max_model_len or 1).max_requests
    engine = EngineProcess(Opening(str(model_path), options), max_requests, supervision=supervision)
    try:
        model = open_model(model_path)
        try:
            spec = model.spec
            tokenizer = model.tokenizer()
            check_tokenizer(model_path, tokenizer, spec)
            source = model.chat_template()
            chat_template = None if source is None else ChatTemplate(source, tokenizer)
        finally:
            model.close()
        del model  # its vocabulary isn't held any longer: what the engine is told of this process is what it will hold
        ready = engine.load()
    except BaseException:
        engine.discard()
        raise
    assert ready.plan is not None
    return BuiltEngine(engine, tokenizer, chat_template, spec, ready.plan, ready.runner_name, ready.warning)
