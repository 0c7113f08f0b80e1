"""An engine with known timings is measured, and they come out."""

from __future__ import annotations

import pytest
from tests.unit.ops.bench.known_subject import ACCOUNTS, KnownSubject

from ullage.base.errors import EngineError
from ullage.ops.bench.measure import Comparison, make_prompts, rate
from ullage.ops.bench.scenario import Point

VOCAB_SIZE = 1000


def point(kind, num_sequences=1, prompt_tokens=100, new_tokens=11, repeats=3):
    return Point("p", "p", kind, num_sequences, prompt_tokens, new_tokens, repeats, None)


@pytest.mark.parametrize("tells", [True, False])
def test_decoding_of_one_sequence_leaves_prompt_and_first_token_out(tells):
    subject = KnownSubject("it", step=0.02, tells=tells)
    assert rate(point("decode"), subject, VOCAB_SIZE, "seed") == pytest.approx(50)


def test_decoding_of_many_counts_all_their_tokens():
    assert rate(point("decode", 4), KnownSubject("it", step=0.02), VOCAB_SIZE, "seed") == pytest.approx(200)


def test_throughput_includes_the_prompts():
    seconds = 4 * 100 / 1000 + 10 * 0.02
    assert rate(point("throughput", 4), KnownSubject("it"), VOCAB_SIZE, "seed") == pytest.approx(4 * 11 / seconds)


def test_prefill_counts_prompt_tokens():
    assert rate(point("prefill", new_tokens=1), KnownSubject("it"), VOCAB_SIZE, "seed") == pytest.approx(1000)


def test_a_decode_that_takes_no_time_is_no_figure():
    assert rate(point("decode", 2), KnownSubject("it", step=0.0), VOCAB_SIZE, "seed") is None
    comparison = compare(KnownSubject("ours"), KnownSubject("peer", step=0.0))
    assert "too busy" in comparison.measure(point("decode", 2))["peer"].error
    assert comparison.measure(point("prefill"))["peer"].median == pytest.approx(1000)


def test_prompts_share_no_beginning_and_are_new_for_each_sample():
    prompts = make_prompts(64, 256, VOCAB_SIZE, "p 0")
    assert {len(prompt) for prompt in prompts} == {256}
    assert len({prompt[0] for prompt in prompts}) == 64
    assert prompts == make_prompts(64, 256, VOCAB_SIZE, "p 0")
    assert prompts != make_prompts(64, 256, VOCAB_SIZE, "p 1")


def compare(*subjects, more=()):
    """A comparison in which each engine starts as the subject of its name; ``more`` are later starts of ours."""
    later = list(more)
    launches = {subject.name: lambda subject=subject: subject for subject in subjects}
    comparison = Comparison(launches, subjects[0].name, lambda kv_memory: later.pop(0), VOCAB_SIZE, lambda text: None)
    comparison.start()
    return comparison


def test_engines_take_turns_and_keep_all_samples():
    said = []
    ours, peer = KnownSubject("ours", step=0.01), KnownSubject("peer", step=0.04)
    comparison = Comparison(
        {"ours": lambda: ours, "peer": lambda: peer}, "ours", lambda _: ours, VOCAB_SIZE, said.append
    )
    comparison.start()
    measured = comparison.measure(point("decode", repeats=2))
    assert measured["ours"].samples == pytest.approx([100, 100])
    assert measured["peer"].median == pytest.approx(25)
    turns = ["p: ours, 1 of 2", "p: peer, 1 of 2", "p: ours, 2 of 2", "p: peer, 2 of 2"]
    assert said == ["starting ours", "starting peer", *turns]
    comparison.close()
    assert ours.closed
    assert peer.closed


def test_a_start_is_repeated_with_fresh_processes_unless_it_is_slow():
    starts = {"ours": iter([1.5, 1.0, 2.0]), "slow": iter([300.0])}
    launches = {name: lambda name=name: KnownSubject(name, start=next(starts[name])) for name in starts}
    comparison = Comparison(launches, "ours", lambda _: KnownSubject("ours"), VOCAB_SIZE, lambda text: None)
    comparison.start()
    measured = comparison.measure(point("start"))
    assert measured["ours"].samples == [1.5, 1.0, 2.0]
    assert measured["ours"].median == 1.5
    assert measured["slow"].samples == [300.0]


def test_a_peer_that_fails_is_reported_with_its_reason_and_the_others_go_on():
    comparison = compare(KnownSubject("ours"), KnownSubject("peer", fails_after=3))
    first, second = comparison.measure(point("prefill", repeats=1)), comparison.measure(point("decode"))
    assert first["peer"].error is None
    assert second["peer"].error == "peer ended with exit code -11: it said nothing"
    assert second["peer"].median is None
    assert comparison.measure(point("prefill"))["peer"].error
    assert len(second["ours"].samples) == 3
    assert list(comparison.describe()) == ["ours"]


def test_a_peer_that_does_not_start_is_reported():
    def refuse():
        raise EngineError("peer: it reads GGUF files, and this model isn't one")

    ours = KnownSubject("ours")
    comparison = Comparison(
        {"ours": lambda: ours, "peer": refuse}, "ours", lambda _: ours, VOCAB_SIZE, lambda text: None
    )
    comparison.start()
    assert comparison.failures == {"peer": "peer: it reads GGUF files, and this model isn't one"}


def test_our_own_failure_ends_the_run():
    comparison = compare(KnownSubject("ours", fails_after=0))
    with pytest.raises(EngineError, match="exit code"):
        comparison.measure(point("decode"))


def test_memory_is_that_of_a_process_of_its_own_idle_and_under_load():
    other = KnownSubject("ours")
    measured = compare(KnownSubject("ours"), KnownSubject("peer"), more=[other]).measure(point("memory", repeats=1))
    assert list(measured) == ["ours"]
    assert measured["ours"].samples == [1010, 1020]
    assert measured["ours"].details == {"accounts": ACCOUNTS}
    assert other.closed
