"""The Python door and what it builds, on a tiny model with random weights and the numpy runner."""

from __future__ import annotations

import logging

import pytest
from tests.model_fixtures import tiny_model, write_gguf

from ullage import LLM, SamplingParams
from ullage.base.errors import (
    ConfigError,
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    ModelFileError,
    PlanError,
)
from ullage.engine import build
from ullage.engine.build import EngineOptions, build_engine, choose_runner
from ullage.kernels import native

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
OPTIONS = {"runner": "numpy", "kv_memory": "1MiB", "max_num_seqs": 4, "max_num_batched_tokens": 16}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_model("llama"))


@pytest.fixture(scope="module")
def llm(model_path):
    with LLM(model_path, **OPTIONS) as llm:
        yield llm


def test_one_prompt_gives_one_completion(llm):
    completion = llm.generate("hello the", GREEDY)
    assert len(completion.token_ids) == 8
    assert completion.finish_reason == "length"
    assert completion.prompt_token_ids == tuple(llm._built.tokenizer.encode("hello the"))


def test_a_list_gives_a_list_with_the_same_texts_as_alone(llm):
    prompts = ["hello", "the in", (5, 6, 7), "world", "hello the world", "in"]
    together = llm.generate(prompts, GREEDY)
    alone = [llm.generate(prompt, GREEDY) for prompt in prompts]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert [c.text for c in together] == [c.text for c in alone]


def test_a_stream_joins_to_the_same_text(llm):
    pieces = list(llm.generate_stream("hello the", GREEDY))
    assert "".join(piece.text for piece in pieces) == llm.generate("hello the", GREEDY).text
    assert [piece.finish_reason for piece in pieces][-1] == "length"


def test_chat_renders_the_models_template(llm):
    messages = [{"role": "user", "content": "hello"}]
    completion = llm.chat(messages, GREEDY)
    assert completion.prompt_token_ids == tuple(llm._built.chat_template.render(messages))
    assert "".join(piece.text for piece in llm.chat_stream(messages, GREEDY)) == completion.text


def test_leaving_a_stream_early_frees_its_blocks(llm):
    stream = llm.generate_stream("hello the", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    next(stream)
    stream.close()
    llm.generate("in", GREEDY)  # runs after the abort on the engine's thread
    assert llm.ledger().kv_reserved_bytes == 0


def test_a_stream_that_outlives_its_llm_is_harmless(model_path):
    with LLM(model_path, **OPTIONS) as llm:
        stream = llm.generate_stream("hello the", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
        next(stream)
    stream.close()


@pytest.mark.parametrize("prompts", [[1, 2, 3], [[1, 2], [3]], 5, None, b"hello"])
def test_token_ids_that_are_no_tuple_are_refused_with_the_rule(llm, prompts):
    with pytest.raises(InvalidRequestError, match="a text or a tuple of token ids") as refused:
        llm.generate(prompts, GREEDY)
    assert "a list is a batch" in refused.value.hint
    with pytest.raises(InvalidRequestError):
        llm.generate_stream([1, 2, 3], GREEDY)


def test_a_tuple_of_texts_is_no_prompt(llm):
    with pytest.raises(InvalidRequestError, match="ids are ints"):
        llm.generate(("hello", "the"), GREEDY)


def test_an_llm_says_that_it_was_closed(model_path):
    llm = LLM(model_path, **OPTIONS)
    stream = llm.generate_stream("hello the", SamplingParams(max_tokens=200, ignore_eos=True))
    llm.close()
    for use in (
        lambda: llm.generate("hello", GREEDY),
        lambda: llm.generate_stream("hello", GREEDY),
        lambda: llm.chat([{"role": "user", "content": "hello"}], GREEDY),
        lambda: next(stream),
    ):
        with pytest.raises(EngineError, match="this LLM was closed"):
            use()


def test_a_refused_stream_raises_at_once(llm):
    with pytest.raises(ContextLengthError):
        llm.generate_stream((1,) * 300, GREEDY)


def test_a_batch_larger_than_the_queue_is_served(model_path):
    with LLM(model_path, **OPTIONS, max_waiting_requests=1) as llm:
        completions = llm.generate(["hello"] * 12, GREEDY)
    assert len({completion.token_ids for completion in completions}) == 1


def test_one_prompt_that_cannot_be_served_refuses_the_batch_and_leaves_nothing_running(llm):
    with pytest.raises(ContextLengthError):
        llm.generate(["hello", (1,) * 300], GREEDY)
    llm.generate("in", GREEDY)
    assert llm.ledger().kv_reserved_bytes == 0


def test_all_that_the_plan_promised_is_allocated_and_the_runtime_is_measured(llm):
    accounts = llm.ledger().accounts
    for name in ("weights", "kv_pool", "workspace", "logits"):
        assert accounts[name].allocated_bytes == accounts[name].planned_bytes
    assert accounts["kv_pool"].planned_bytes <= 1 << 20
    assert accounts["runtime"].allocated_bytes > 0


def test_close_is_idempotent_and_ends_the_engine(model_path):
    llm = LLM(model_path, **OPTIONS)
    llm.close()
    llm.close()
    assert not llm._thread.is_alive()


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        ({"max_model_length": 5}, ConfigError, "did you mean max_model_len?"),
        ({"max_model_len": 100_000}, ConfigError, "use at most 256"),
        ({"kv_memory": "1KiB"}, ConfigError, "smaller blocks"),
        ({"kv_memory": "900TiB"}, PlanError, "it would hold with --kv-memory "),
        ({"max_num_batched_tokens": 2}, ConfigError, "lower the second"),
        ({"weight_type": "fp4"}, ConfigError, None),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(model_path, options, error, hint):
    with pytest.raises(error) as refused:
        LLM(model_path, **(OPTIONS | options))
    assert refused.value.hint is hint or hint in refused.value.hint


def test_a_base_model_refuses_to_chat(tmp_path):
    path = write_gguf(tmp_path / "base.gguf", tiny_model("llama"), metadata={"tokenizer.chat_template": None})
    with LLM(path, **OPTIONS) as llm, pytest.raises(InvalidRequestError, match="base model"):
        llm.chat([{"role": "user", "content": "hello"}])


def test_a_broken_template_refuses_the_model(tmp_path):
    path = write_gguf(tmp_path / "broken.gguf", tiny_model("llama"), metadata={"tokenizer.chat_template": "{% for"})
    with pytest.raises(ModelFileError):
        build_engine(path, EngineOptions(runner="numpy"))


def test_without_kernels_the_reference_runs_and_says_so(model_path, monkeypatch, caplog):
    monkeypatch.setattr(native, "native_unavailable_reason", lambda: "not compiled")
    with caplog.at_level(logging.WARNING), LLM(model_path, **(OPTIONS | {"runner": "auto"})) as llm:
        assert "numpy" in llm.runner_name
    assert "SLOW NUMPY REFERENCE" in caplog.text

    with pytest.raises(ConfigError, match="not compiled"):
        choose_runner("native")
    assert choose_runner("numpy") == ("numpy", None)


def test_a_part_that_takes_other_bytes_than_planned_stops_the_start(model_path, monkeypatch):
    from dataclasses import replace

    planned = build.plan_engine

    def too_much(*args):
        plan = planned(*args)
        first, *others = plan.accounts
        return replace(plan, accounts=(replace(first, num_bytes=first.num_bytes + 1), *others))

    monkeypatch.setattr(build, "plan_engine", too_much)
    with pytest.raises(EngineError, match="weights: planned"):
        build_engine(model_path, EngineOptions(runner="numpy"))


@pytest.mark.parametrize("messages", ["hello", [], ["hello"], [None]])
def test_what_is_no_conversation_is_refused_by_name(llm, messages):
    with pytest.raises(InvalidRequestError, match="at least one mapping") as error:
        llm.chat(messages)
    assert error.value.param == "messages"


@pytest.mark.parametrize("sampling", [{"max_tokens": 3}, [SamplingParams()], 3])
def test_sampling_of_another_kind_is_refused_by_name(llm, sampling):
    with pytest.raises(InvalidRequestError, match="one SamplingParams for all prompts") as error:
        llm.generate("x", sampling)
    assert error.value.param == "sampling"
