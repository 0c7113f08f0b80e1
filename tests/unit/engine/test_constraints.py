"""Constrained requests on a core whose tokens are ASCII characters, 127 being the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.fake_engine import EOS_TOKEN_ID, VOCAB_SIZE, make_core, run

from ullage.base.errors import InvalidRequestError
from ullage.engine.constraint import Constraint
from ullage.engine.core import EngineCore
from ullage.engine.grammars import GrammarCompiler
from ullage.engine.request import TokenOutput
from ullage.engine.sampling_params import SamplingParams

PROMPT = [1, 2, 3, 4, 5, 6, 7]
DIGITS = Constraint("regex", "[0-9]{12}")
WORDS = Constraint("regex", "[a-z]+")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler([*(bytes([i]) for i in range(EOS_TOKEN_ID)), b""], [EOS_TOKEN_ID])


def add(
    core: EngineCore, compiler: GrammarCompiler, constraint: Constraint, prompt: Sequence[int] = PROMPT, **fields: int
) -> int:
    sampling = SamplingParams(**{"max_tokens": 20, **fields}, constraint=constraint)
    return core.add_request(prompt, sampling, matcher=compiler.matcher(constraint))


def text_of(outputs: Sequence[TokenOutput]) -> str:
    return bytes(output.token_id for output in outputs if output.token_id not in (None, EOS_TOKEN_ID)).decode()


def test_an_output_matches_and_ends_where_it_must(compiler: GrammarCompiler) -> None:
    core = make_core()
    request_id = add(core, compiler, DIGITS)
    outputs = run(core)[request_id]
    assert text_of(outputs).isdecimal()
    assert len(text_of(outputs)) == 12
    assert outputs[-1].token_id == EOS_TOKEN_ID
    assert outputs[-1].finish_reason == "stop"
    assert len(core.constraints) == 0


def test_the_end_comes_only_where_the_text_may_end(compiler: GrammarCompiler) -> None:
    core = make_core(eos_probability=1.0)
    request_id = add(core, compiler, WORDS)
    assert len(text_of(run(core)[request_id])) == 1


def test_min_tokens_put_the_end_off_while_there_is_a_choice(compiler: GrammarCompiler) -> None:
    core = make_core(eos_probability=1.0)
    free = add(core, compiler, WORDS, min_tokens=5)
    bound = add(core, compiler, DIGITS, min_tokens=20)
    outputs = run(core)
    assert len(text_of(outputs[free])) == 5
    assert len(text_of(outputs[bound])) == 12
    assert outputs[bound][-1].finish_reason == "stop"


@pytest.mark.parametrize("beside", [0, 3])
def test_outputs_are_the_same_alone_chunked_preempted_or_from_the_cache(compiler: GrammarCompiler, beside: int) -> None:
    prompts = [[i] * 5 for i in range(beside + 1)]
    alone = []
    for prompt in prompts:
        core = make_core(num_blocks=64)
        request_id = add(core, compiler, DIGITS, prompt)
        alone.append(text_of(run(core)[request_id]))
    crowded = make_core(num_blocks=8)
    ids = [add(crowded, compiler, DIGITS, prompt) for prompt in prompts]
    outputs = run(crowded)
    assert [text_of(outputs[i]) for i in ids] == alone
    assert (crowded.scheduler.counters.num_preemptions > 0) == (beside > 0)
    again = add(crowded, compiler, DIGITS, prompts[0])
    assert text_of(run(crowded)[again]) == alone[0]
    assert crowded.scheduler.counters.num_prefix_hit_tokens > 0


def test_requests_without_a_constraint_are_what_they_were(compiler: GrammarCompiler) -> None:
    alone = make_core()
    free = alone.add_request(PROMPT, SamplingParams(max_tokens=8))
    expected = [output.token_id for output in run(alone)[free]]
    core = make_core()
    constrained = add(core, compiler, DIGITS)
    free = core.add_request(PROMPT, SamplingParams(max_tokens=8))
    outputs = run(core)
    assert [output.token_id for output in outputs[free]] == expected
    assert text_of(outputs[constrained]).isdecimal()


def test_a_constraint_that_the_vocabulary_cannot_spell_ends_its_own_request() -> None:
    core = make_core()
    tokens = [bytes([i]) if chr(i) in "ab" else b"" for i in range(EOS_TOKEN_ID)]
    poor = GrammarCompiler([*tokens, b""], [EOS_TOKEN_ID])
    stuck = add(core, poor, Constraint("regex", "(a|b)c"))
    free = core.add_request(PROMPT, SamplingParams(max_tokens=8))
    outputs = run(core)
    assert outputs[stuck][-1].finish_reason == "error"
    assert "constraint" in str(outputs[stuck][-1].error)
    assert outputs[free][-1].finish_reason == "length"


def test_an_aborted_request_leaves_no_matcher(compiler: GrammarCompiler) -> None:
    core = make_core()
    request_id = add(core, compiler, DIGITS)
    core.step()
    assert core.abort(request_id)
    assert len(core.constraints) == 0


def test_a_schema_gives_json(compiler: GrammarCompiler) -> None:
    core = make_core(num_blocks=64)
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    request_id = add(core, compiler, Constraint("json_schema", json.dumps(schema)), max_tokens=150)
    outputs = run(core)[request_id]
    assert outputs[-1].finish_reason == "stop"
    assert json.loads(text_of(outputs)).keys() == {"name", "age"}
    assert VOCAB_SIZE > EOS_TOKEN_ID


class BrokenMatcher:
    """As one that met a limit of the library while it was followed."""

    def is_error(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_a_constraint_that_cannot_be_followed_any_further_is_the_requests_fault(compiler: GrammarCompiler) -> None:
    core = make_core()
    request_id = core.add_request(PROMPT, SamplingParams(constraint=WORDS), matcher=cast(Any, BrokenMatcher()))
    last = run(core)[request_id][-1]
    assert last.finish_reason == "error"
    assert isinstance(last.error, InvalidRequestError)
    assert "too complex" in str(last.error)
