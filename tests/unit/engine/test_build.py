"""What the options and the model file say reaches the part that it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.model_fixtures import TOKENS, TinyModel, tiny_model, write_folder, write_gguf
from tests.scripted_engine import ByteTokenizer

from ullage import LLM, SamplingParams
from ullage.base.errors import ConfigError, EngineError, ModelFileError
from ullage.engine import build, core, native_runner
from ullage.engine.build import EngineOptions, build_engine, check_tokenizer
from ullage.engine.scheduler import SchedulerConfig
from ullage.kernels.layout import native_memory, tensor_types
from ullage.plan import machine

EOS = TOKENS.index("<|im_end|>")
OPTIONS = {"runner": "numpy", "kv_memory": "1MiB", "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 4}
SAMPLED = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_model("llama"))


def test_a_built_model_stops_at_its_end_of_sequence(model_path):
    with LLM(model_path, **OPTIONS) as llm:
        ended = llm.generate("hello", SamplingParams(max_tokens=5, logit_bias={EOS: 100.0}, temperature=0))
        assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == ((EOS,), "stop", None)
        later = llm.generate(
            "hello", SamplingParams(max_tokens=5, logit_bias={EOS: 100.0}, temperature=0, min_tokens=2)
        )
        assert [token_id == EOS for token_id in later.token_ids] == [False, False, True]


def test_the_seed_decides_what_is_drawn(model_path):
    def drawn(seed: int) -> list[tuple[int, ...]]:
        with LLM(model_path, **OPTIONS, seed=seed) as llm:
            return [completion.token_ids for completion in llm.generate(["hello", "hello"], SAMPLED)]

    first, second = drawn(1)
    assert first != second
    assert drawn(1) == [first, second]
    assert drawn(2) != [first, second]


@pytest.mark.parametrize("enabled", [True, False])
def test_prefixes_are_found_again_unless_that_is_off(model_path, enabled):
    with LLM(model_path, **OPTIONS, enable_prefix_caching=enabled) as llm:
        assert [llm.generate((1,) * 9, SAMPLED).num_cached_tokens for _ in range(2)] == [0, 8 * enabled]


class Reached(Exception):
    """Carries what a runner was built with; nothing needs to be built then."""


@pytest.mark.parametrize(("threads", "expected"), [(3, 3), (None, 7)])
@pytest.mark.parametrize(
    ("weight_type", "kv_type", "isa"),
    [("file", "bf16", "auto"), ("int8", "int8", "avx2"), ("int4", "bf16", "portable")],
)
def test_what_the_native_runner_is_asked_for_reaches_it_and_the_plan(
    model_path, monkeypatch, threads, expected, weight_type, kv_type, isa
):
    def build_runner(model, ledger, **arguments):
        planned = {name: account.planned_bytes for name, account in ledger.snapshot().accounts.items()}
        raise Reached(model.spec, tensor_types(model), planned, arguments)

    monkeypatch.setattr(machine, "num_cores", lambda: 7)
    monkeypatch.setattr(build, "choose_runner", lambda wanted: ("native", None))
    monkeypatch.setattr(native_runner, "NativeRunner", build_runner)
    options = EngineOptions(
        kv_memory=1 << 20,
        threads=threads,
        weight_type=weight_type,
        kv_cache_dtype=kv_type,
        isa=isa,
        max_num_seqs=4,
        max_num_batched_tokens=64,
    )
    with pytest.raises(Reached) as reached:
        build_engine(model_path, options)
    spec, stored_types, planned, arguments = reached.value.args
    assert (arguments["num_threads"], arguments["weight_type"]) == (expected, weight_type)
    assert (arguments["kv_type"], arguments["isa"]) == (kv_type, None if isa == "auto" else isa)
    assert (arguments["max_num_seqs"], arguments["max_num_batched_tokens"], arguments["block_size"]) == (4, 64, 32)
    needed = native_memory(
        spec,
        arguments["num_blocks"],
        32,
        4,
        weight_type=weight_type,
        stored_types=stored_types,
        kv_type=kv_type,
        max_num_batched_tokens=64,
        num_threads=expected,
    )
    assert needed.items() <= planned.items()


def test_what_bounds_steps_and_queues_reaches_the_scheduler(model_path, monkeypatch):
    def build_core(runner, kv_config, scheduler_config, **arguments):
        raise Reached(scheduler_config)

    monkeypatch.setattr(core, "EngineCore", build_core)
    options = EngineOptions(**{**OPTIONS, "kv_memory": 1 << 20}, max_waiting_requests=9, target_itl_ms=70)
    with pytest.raises(Reached) as reached:
        build_engine(model_path, options)
    (config,) = reached.value.args
    assert config == SchedulerConfig(config.max_model_len, 4, 16, 9, 70, max_preemptions=3)


@pytest.mark.parametrize(
    ("name", "value"), [("threads", 2), ("weight_type", "int8"), ("kv_cache_dtype", "int8"), ("isa", "portable")]
)
def test_what_only_the_native_runner_can_do_is_refused_by_the_numpy_one(model_path, name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}, but the numpy runner") as refused:
        LLM(model_path, **OPTIONS, **{name: value})
    assert f"leave {name} out" in refused.value.hint


def write_with_rows(path, num_rows: int):
    """A model whose embedding has another number of rows than its tokenizer has tokens."""
    return write_gguf(path, TinyModel(replace(tiny_model("llama").spec, vocab_size=num_rows)))


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused(tmp_path):
    path = write_with_rows(tmp_path / "short.gguf", 250)
    with pytest.raises(ModelFileError, match=r"tokenizer has 269 tokens, but the model only 250 rows"):
        LLM(path, **OPTIONS)


def test_rows_without_a_token_are_padding(tmp_path):
    with LLM(write_with_rows(tmp_path / "padded.gguf", 300), **OPTIONS) as llm:
        assert llm.generate("hello", SAMPLED).finish_reason == "length"


class ImageTokenizer(ByteTokenizer):
    """Its last token, a control token, ends nothing."""

    eos_token_ids = (0,)


def test_a_control_token_behind_the_last_row_does_no_harm_unless_it_ends_outputs():
    spec = replace(tiny_model("llama").spec, vocab_size=256)
    check_tokenizer(Path("gemma"), ImageTokenizer(), spec)
    with pytest.raises(ModelFileError, match="gemma: end-of-sequence token 256 isn't among the model's 256 tokens"):
        check_tokenizer(Path("gemma"), ByteTokenizer(), spec)
    with pytest.raises(ModelFileError, match="tokenizer has 256 tokens, but the model only 255 rows"):
        check_tokenizer(Path("gemma"), ImageTokenizer(), replace(spec, vocab_size=255))


def test_an_end_of_sequence_token_that_only_the_configuration_knows_is_refused(tmp_path):
    path = write_folder(tmp_path / "folder", tiny_model("llama"), config={"eos_token_id": [EOS, 9999]})
    with pytest.raises(ModelFileError, match=r"token 9999 isn't among the model's 272 tokens"):
        LLM(path, **OPTIONS)


def test_a_request_that_may_choose_no_token_ends_alone(model_path):
    every_token = SamplingParams(max_tokens=3, min_tokens=2, stop_token_ids=tuple(range(len(TOKENS))))
    with LLM(model_path, **OPTIONS) as llm:
        with pytest.raises(EngineError, match="no token can be chosen"):
            llm.generate("hello", every_token)
        assert llm.generate("hello", SAMPLED).finish_reason == "length"
        assert llm.ledger().kv_reserved_bytes == 0
