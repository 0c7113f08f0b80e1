from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fake_engine import EOS_TOKEN_ID, make_core
from tests.scripted_engine import ByteTokenizer

from ullage.base.errors import InvalidRequestError
from ullage.engine.client import GenerationOutput, GenerationRequest
from ullage.engine.fake_runner import FakeRunner
from ullage.engine.output import TextEngine, merge_outputs, nothing_yet
from ullage.engine.sampling_params import SamplingParams
from ullage.engine.step import SampledToken, ScheduledStep

PROMPT = (1, 2, 3)


class ScriptedRunner(FakeRunner):
    """Says a written text, whatever it is asked; then the end of sequence."""

    script = b"hello world, and so on" + bytes([EOS_TOKEN_ID])

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        self.num_steps += 1
        return [
            SampledToken(
                request.request_id,
                self.script[len(request.history) - request.num_prompt_tokens],
                *(() if request.sampling.logprobs is None else (-0.5, ((7, -0.5),))),
            )
            for request in step.requests
            if request.needs_logits
        ]


def make_engine(runner_class: type[FakeRunner] = ScriptedRunner) -> TextEngine:
    return TextEngine(make_core(runner_class=runner_class), ByteTokenizer())


def run(engine: TextEngine, **sampling: object) -> GenerationOutput:
    """All outputs of one request, as one."""
    request = GenerationRequest(PROMPT, SamplingParams(**{"max_tokens": 40, **sampling}))
    engine.check(request)
    request_id = engine.add_request(request)
    outputs = []
    while engine.has_work:
        for output_id, output in engine.step():
            assert output_id == request_id
            outputs.append(output)
        engine.core.check_integrity()
    assert engine.request_ids == ()
    assert [output.finish_reason is None for output in outputs] == [True] * (len(outputs) - 1) + [False]
    return merge_outputs(outputs)


def test_the_end_of_sequence_adds_no_text():
    output = run(make_engine())
    assert (output.text, output.finish_reason, output.stop_reason) == ("hello world, and so on", "stop", None)
    assert output.token_ids == tuple(ScriptedRunner.script)


def test_a_stop_token_adds_no_text():
    output = run(make_engine(), stop_token_ids=(ord(","),))
    assert (output.text, output.finish_reason, output.stop_reason) == ("hello world", "stop", ord(","))
    assert output.num_output_tokens == len("hello world,")


def test_a_stop_text_ends_the_request_and_not_one_more_token_is_run():
    engine = make_engine()
    output = run(engine, stop=("world", "never"))
    assert (output.text, output.finish_reason, output.stop_reason) == ("hello ", "stop", "world")
    assert output.num_output_tokens == engine.core.runner.num_steps == len("hello world")
    assert engine.core.ledger.snapshot().kv_reserved_bytes == 0


def test_a_stop_text_within_min_tokens_is_text():
    output = run(make_engine(), stop=("o",), min_tokens=5)
    assert (output.text, output.stop_reason, output.num_output_tokens) == ("hello w", "o", 8)
    output = run(make_engine(), stop=("hello",), min_tokens=4)
    assert (output.text, output.stop_reason) == ("", "hello")  # completed by a token behind them


class SpacedTokenizer(ByteTokenizer):
    strip_leading_space = True

    def is_control(self, token_id: int) -> bool:
        return token_id == EOS_TOKEN_ID


@pytest.mark.parametrize(("last", "text"), [(1, " world"), (EOS_TOKEN_ID, "world")])
def test_a_first_space_belongs_to_the_text_unless_a_control_token_comes_before(last, text):
    class SpacedRunner(ScriptedRunner):
        script = b" world"

    engine = TextEngine(make_core(runner_class=SpacedRunner), SpacedTokenizer())
    request = GenerationRequest((1, 2, last), SamplingParams(max_tokens=6))
    engine.check(request)
    engine.add_request(request)
    assert merge_outputs([output for _ in range(6) for _, output in engine.step()]).text == text


def test_a_stop_text_completed_by_the_last_token_is_a_stop():
    output = run(make_engine(), stop=("wor",), max_tokens=9)
    assert (output.text, output.finish_reason, output.stop_reason) == ("hello ", "stop", "wor")


def test_text_held_back_for_a_stop_text_is_released_at_the_end():
    output = run(make_engine(), stop=("world!",), max_tokens=10)
    assert (output.text, output.finish_reason) == ("hello worl", "length")
    assert run(make_engine(), stop=("so on.",)).text == "hello world, and so on"


def test_abort_releases_the_text_held_back_and_comes_once():
    engine = make_engine()
    request_id = engine.add_request(GenerationRequest(PROMPT, SamplingParams(max_tokens=40, stop=("hello!",))))
    outputs = [output for _ in range(4) for _, output in engine.step()]
    last = engine.abort(request_id)
    assert last is not None
    assert merge_outputs([*outputs, last]).text == "hell"
    assert (last.token_ids, last.num_output_tokens, last.finish_reason) == ((), 4, "abort")
    assert engine.abort(request_id) is None
    assert not engine.has_work


def test_a_request_that_is_not_streamed_has_one_output_with_everything_a_stream_brings():
    streamed, engine = run(make_engine(), logprobs=1, stop=("so on",)), make_engine()
    sampling = SamplingParams(max_tokens=40, logprobs=1, stop=("so on",))
    request_id = engine.add_request(GenerationRequest(PROMPT, sampling, streamed=False))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert [(number, replace(output, times=None)) for number, output in outputs] == [
        (request_id, replace(streamed, times=None))
    ]


def test_abort_of_a_request_that_is_not_streamed_gives_what_it_had_so_far():
    engine = make_engine()
    request_id = engine.add_request(GenerationRequest(PROMPT, SamplingParams(max_tokens=40), streamed=False))
    assert [output for _ in range(4) for output in engine.step()] == []
    last = engine.abort(request_id)
    assert last is not None
    assert (last.text, last.token_ids, last.finish_reason) == ("hell", tuple(b"hell"), "abort")


class SpeechlessRunner(ScriptedRunner):
    """Finds no token for the third of a request that wants log-probabilities."""

    def execute(self, step: ScheduledStep) -> list[SampledToken]:
        return [
            replace(token, token_id=None, error="all are banned")
            if token.logprob is not None and token.token_id == ord("l")
            else token
            for token in super().execute(step)
        ]


def test_a_request_without_a_token_to_choose_ends_with_an_error_and_the_others_go_on():
    engine = make_engine(SpeechlessRunner)
    other_id = engine.add_request(GenerationRequest(PROMPT, SamplingParams(max_tokens=5)))
    failed_id = engine.add_request(GenerationRequest(PROMPT, SamplingParams(max_tokens=5, logprobs=0, stop=("he!",))))
    outputs = {other_id: [], failed_id: []}
    while engine.has_work:
        for request_id, output in engine.step():
            outputs[request_id].append(output)
        engine.core.check_integrity()
    failed = merge_outputs(outputs[failed_id])
    assert (failed.text, failed.token_ids, failed.num_output_tokens) == ("he", tuple(b"he"), 2)
    assert (failed.finish_reason, len(failed.logprobs)) == ("error", 2)
    assert "all are banned" in failed.error.message
    assert merge_outputs(outputs[other_id]).text == "hello"
    assert engine.core.scheduler.counters.num_generated_tokens == 7


def test_log_probabilities_come_with_their_tokens_when_asked_for():
    output = run(make_engine(), max_tokens=3, logprobs=1)
    assert [(logprob.token_id, logprob.logprob) for logprob in output.logprobs] == [(i, -0.5) for i in b"hel"]
    assert run(make_engine(), max_tokens=3).logprobs == ()


def test_without_a_tokenizer_there_are_tokens_only():
    engine = TextEngine(make_core(), None)
    output = run(engine, max_tokens=5)
    assert (output.text, len(output.token_ids)) == ("", 5)
    with pytest.raises(InvalidRequestError, match="stop texts need a tokenizer"):
        run(engine, stop=("x",))


def test_merging_keeps_text_tokens_and_the_last_counts():
    nothing = nothing_yet(GenerationRequest(PROMPT, SamplingParams()))
    first = replace(nothing, text="a", token_ids=(1,), num_output_tokens=1)
    second = replace(nothing, text="b", token_ids=(2, 3), num_output_tokens=3, finish_reason="length")
    merged = merge_outputs([first, second])
    assert merged == replace(second, text="ab", token_ids=(1, 2, 3))
    assert merge_outputs([second]) is second
