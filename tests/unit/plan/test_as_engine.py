"""Real start-up logs, worked out from the model's configuration and the inputs alone."""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.base.errors import ConfigError
from ullage.plan.as_engine import ENGINES, as_engine
from ullage.plan.engines.request import FIGURES

from .start_up_cases import Case, cases

EXACT, ROUNDED = cases("exact"), cases("rounded")
CONTROLS, INFORMATION = cases("negative-control"), cases("information-only")
WITH_BLOCKS = [case for case in EXACT + ROUNDED if "from_blocks" in case.expect]


def by_name(case: Case) -> str:
    return case.name


def test_every_kind_of_case_is_there():
    kinds = Counter(case.raw["test"] for case in EXACT + ROUNDED + CONTROLS + INFORMATION)
    assert kinds == {"exact": 29, "rounded": 11, "negative-control": 3, "information-only": 9}
    assert all(case.printed() for case in EXACT + ROUNDED)
    assert len(WITH_BLOCKS) >= 10


@pytest.mark.parametrize("case", EXACT + ROUNDED, ids=by_name)
def test_an_engine_prints_what_is_worked_out(case):
    report = as_engine(case.config, case.file())
    worked_out = {name: report[name] for name in case.printed()}
    wrong = {n: (p, worked_out[n]) for n, p in case.printed().items() if not case.agrees(n, p, worked_out[n])}
    assert wrong == {}
    assert report["implausible"] is False


@pytest.mark.parametrize("case", WITH_BLOCKS, ids=by_name)
def test_figures_follow_exactly_from_the_number_of_blocks(case):
    from_blocks = dict(case.expect["from_blocks"])
    from_blocks.pop("implied", None)
    report = as_engine(case.config, case.file(kv_memory_gib=None, num_gpu_blocks=from_blocks["num_gpu_blocks"]))
    for name, printed in from_blocks.items():
        worked_out = report[name]
        assert isinstance(worked_out, (int, float))
        assert (worked_out if isinstance(printed, int) else round(worked_out, 2)) == printed, name


@pytest.mark.parametrize("case", CONTROLS, ids=by_name)
def test_figures_that_cannot_be_true_together_are_called_implausible(case):
    report = as_engine(case.config, case.file())
    assert report["implausible"] is True
    assert report["reasons"]
    implied = {name: value for name, value in case.printed().items() if name.startswith("implied_")}
    assert implied
    for name, value in implied.items():
        assert case.agrees(name, value, report[name]), (name, value, report[name])


@pytest.mark.parametrize("case", INFORMATION, ids=by_name)
def test_undecidable_logs_are_worked_out_as_far_as_they_go(case):
    report = as_engine(case.config, case.file())
    assert set(FIGURES) <= set(report)
    assert report["implausible"] is False


def test_a_report_has_every_name_and_null_where_a_figure_does_not_apply():
    case = next(case for case in EXACT if case.raw["engine_name"] == "llamacpp")
    report = as_engine(case.config, case.file())
    assert list(report) == [*FIGURES, "implausible", "reasons", "notes"]
    assert report["max_concurrency"] is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"engine_name": "word"}, "engine_name"),
        ({"engine_name": None}, "engine_name"),
        ({"engine_version": "new"}, "engine_version"),
        ({"given": None}, "given"),
        ({"given": []}, "given"),
        ({"given": {"max_model_length": 5}}, "max_model_length"),
        ({"given": {"max_model_len": -1}}, "max_model_len"),
        ({"given": {"max_model_len": True}}, "max_model_len"),
        ({"given": {"kv_memory_gib": float("nan")}}, "kv_memory_gib"),
        ({"given": {"kv_memory_gib": "3"}}, "kv_memory_gib"),
        ({"given": {"kv_dtype": "fp7"}}, "kv_dtype"),
        ({"given": {"token_line": "lines"}}, "token_line"),
        ({"given": {"tensor_parallel_size": 3}}, "tensor_parallel_size"),
        ({"given": {"pipeline_parallel_size": 99}}, "pipeline_parallel_size"),
    ],
    ids=str,
)
def test_a_wrong_input_is_refused_by_name(change, named):
    case = EXACT[0]
    file = {"engine_name": "vllm", "engine_version": "0.11.0", "kv_dtype_name": "bf16", "given": {}, **change}
    with pytest.raises(ConfigError, match=named):
        as_engine(case.config, file)


def test_a_pool_and_weights_larger_than_the_card_are_implausible():
    case = next(case for case in EXACT if case.name == "llama31-8b-3090-20k")
    fits = as_engine(case.config, case.file(gpu_memory_gib=24))
    assert fits["implausible"] is False
    assert as_engine(case.config, case.file(gpu_memory_gib=18))["implausible"] is True


def test_tokens_that_no_card_of_that_size_holds_are_implausible():
    case = next(case for case in EXACT if case.name == "llama31-8b-3090-20k")
    tokens = as_engine(case.config, case.file(kv_memory_gib=None, capacity_tokens=400_000, gpu_memory_gib=24))
    assert tokens["implausible"] is True
    assert round(tokens["implied_kv_gib"], 2) == 48.83


def test_blocks_that_do_not_fill_the_memory_given_for_them_are_implausible():
    case = next(case for case in EXACT if case.name == "llama31-8b-3090-20k")
    assert as_engine(case.config, case.file(num_gpu_blocks=1952))["implausible"] is False
    assert as_engine(case.config, case.file(num_gpu_blocks=1700))["implausible"] is True


GIVEN = sorted({(name, json.dumps(value)) for case in EXACT + ROUNDED for name, value in case.expect["given"].items()})
ODD = st.sampled_from([0, -1, 3, 2**70, 1.5, float("nan"), "x", True, None, []])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_engine_works_out_any_model_or_refuses_it(data):
    config = data.draw(st.sampled_from(EXACT + ROUNDED + INFORMATION)).config
    inputs = {name: json.loads(value) for name, value in data.draw(st.lists(st.sampled_from(GIVEN), max_size=8))}
    if inputs and data.draw(st.booleans()):
        inputs[data.draw(st.sampled_from(sorted(inputs)))] = data.draw(ODD)
    file = {
        "engine_name": data.draw(st.sampled_from(sorted(ENGINES))),
        "engine_version": data.draw(st.sampled_from([None, "0.6.4", "0.11.0", "0.28.0", "b5000"])),
        "kv_dtype_name": data.draw(st.sampled_from(["bf16", "fp8", "nvfp4", "q8_0/fp16"])),
        "given": inputs,
    }
    with contextlib.suppress(ConfigError):
        assert json.dumps(as_engine(config, file), allow_nan=False)
