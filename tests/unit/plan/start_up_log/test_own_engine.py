"""The plan that ``ullage serve`` prints, read back."""

from __future__ import annotations

import io
from importlib import resources
from types import SimpleNamespace

import pytest
from rich.console import Console

from ullage.base.errors import ConfigError, ModelFileError
from ullage.cli.serve import _introduce
from ullage.plan.deployment.own_engine import runtime_bytes
from ullage.plan.deployment.planned_model import PlannedModel, load_model
from ullage.plan.memory import PlanRequest, make_plan
from ullage.plan.start_up_log import compare_own, read_log

REQUEST = PlanRequest("native", "file", "int8", 16, 4096, 24, 256, 300 << 20, 3)


@pytest.fixture
def model(tmp_path) -> PlannedModel:
    shape = resources.files("ullage.ops.bench") / "shapes" / "qwen2.5-0.5b.json"
    (tmp_path / "config.json").write_bytes(shape.read_bytes())
    return load_model(str(tmp_path))


def printed(model: PlannedModel, width: int = 200, request: PlanRequest = REQUEST) -> str:
    spec, types = model.runnable()
    plan = make_plan(spec, types, request, available_bytes=8 << 30, runtime_bytes=runtime_bytes(spec.vocab_size))
    name = f"native (avx512, bf16 weights, {request.kv_type} KV, {request.num_threads} threads)"
    built = SimpleNamespace(spec=spec, plan=plan, runner_name=name, warning=None, chat_template=None)
    console = Console(file=io.StringIO(), width=width)
    _introduce(console, "qwen", model.path, built, 1.0)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_start_that_went_as_planned_has_no_difference_however_wide_the_terminal_was(model, width):
    log = read_log(printed(model, width))
    assert (log.engine, log.model) == ("ullage", str(model.path))
    lines = compare_own(model, log)
    assert [line.name for line in lines] == [
        "weights", "kv_pool", "workspace", "logits", "runtime", "num_blocks", "capacity_tokens",
    ]  # fmt: skip
    assert [(line.planned, line.cause) for line in lines] == [(line.actual, "") for line in lines]


def test_weights_of_another_type_are_told(model):
    text = printed(model)
    weights = read_log(text).actual["weights"]
    changed = text.replace(f"{weights:,.0f}", f"{weights / 2:,.0f}")
    causes = {line.name: line.cause for line in compare_own(model, read_log(changed)) if line.cause}
    assert list(causes) == ["weights"]
    assert "weight_type" in causes["weights"]


def test_half_a_log_says_what_is_missing(model):
    text = printed(model)
    with pytest.raises(ConfigError, match="doesn't say kv_type"):
        compare_own(model, read_log(text[: text.index("runs on")]))


def test_a_model_that_ullage_cannot_run_is_refused(model):
    with pytest.raises(ModelFileError):
        compare_own(load_model("DeepSeek-R1"), read_log(printed(model)))
