"""Scenario files."""

from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.ops.bench.scenario import load_scenario, parse_scenario, scenario_names

ONE = """
[engine]
max_num_seqs = 4
[[workload]]
name = "decode"
kind = "decode"
num_sequences = [1, 4]
prompt_tokens = 8
new_tokens = 4
"""


def test_a_list_becomes_a_point_for_each_value():
    scenario = parse_scenario("one", ONE)
    assert [(point.name, point.num_sequences) for point in scenario.points] == [("decode-1", 1), ("decode-4", 4)]
    assert {point.workload for point in scenario.points} == {"decode"}
    assert scenario.engine == {"max_num_seqs": 4}


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_that_comes_along_can_be_read(name):
    assert load_scenario(name).description


def test_standard_has_the_workloads_that_are_compared():
    points = {point.name: point for point in load_scenario("standard").points}
    assert list(points) == ["start_s", "decode1_tok_s", "decode32_tok_s", "decode64_tok_s", "prefill_tok_s"]
    many = points["decode32_tok_s"]
    assert (many.kind, many.num_sequences, many.prompt_tokens, many.new_tokens) == ("throughput", 32, 256, 128)
    assert points["prefill_tok_s"].prompt_tokens == 1500


def test_full_is_all_the_others():
    full = {point.name for point in load_scenario("full").points}
    others = set(scenario_names()) - {"full", "smoke"}
    assert full == {point.name for other in others for point in load_scenario(other).points}


def test_a_file_can_be_given(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(ONE)
    assert load_scenario(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[engine]", 'desription = "x"\n[engine]', "desription"),
        ("new_tokens = 4", "new_token = 4", "new_token"),
        ("new_tokens = 4", "new_tokens = 1", "at least 2"),
        ("prompt_tokens = 8", "prompt_tokens = [8, 9]", "only one key"),
        ("num_sequences = [1, 4]", "num_sequences = [1, 1]", "two workloads"),
        ("num_sequences = [1, 4]", "num_sequences = 0", "at least 1"),
        ('kind = "decode"', 'kind = "speed"', "a name and a kind"),
        ("[[workload]]", "[[workload", "not TOML"),
    ],
)
def test_what_cannot_be_honoured_is_refused(before, after, message):
    with pytest.raises(ConfigError, match=message):
        parse_scenario("one", ONE.replace(before, after))


def test_an_unknown_scenario_is_told_with_those_there_are():
    with pytest.raises(ConfigError, match="standard"):
        load_scenario("fastest")
