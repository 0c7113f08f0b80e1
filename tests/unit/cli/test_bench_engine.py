"""What the command line makes of its arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.ops.bench.known_result import known_result

from ullage.base.errors import ConfigError
from ullage.cli.bench import bench
from ullage.cli.bench_engine import command_line, engine_options, find_subject
from ullage.ops.bench import run
from ullage.ops.bench.scenario import load_scenario, parse_scenario


@pytest.fixture
def requests(monkeypatch):
    """What would have been run."""
    asked = []

    def run_bench(request, progress):
        progress("measuring")
        asked.append(request)
        return known_result(request.scenario.name)

    monkeypatch.setattr(run, "run_bench", run_bench)
    return asked


def engine(*arguments: str) -> str:
    done = CliRunner().invoke(bench, ["engine", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_flags_win_over_the_environment_and_that_over_the_scenario(monkeypatch):
    scenario = load_scenario("standard")
    assert engine_options(scenario, {}).max_num_seqs == 64
    assert engine_options(scenario, {}).enable_prefix_caching is False
    monkeypatch.setenv("ULLAGE_MAX_NUM_SEQS", "80")
    assert engine_options(scenario, {}).max_num_seqs == 80
    assert engine_options(scenario, {"max_num_seqs": "96"}).max_num_seqs == 96


def test_a_setting_that_nobody_knows_is_refused_in_a_scenario():
    text = '[engine]\nmax_seqs = 1\n[[workload]]\nname = "a"\nkind = "decode"\nnew_tokens = 2\n'
    with pytest.raises(ConfigError, match="max_seqs"):
        engine_options(parse_scenario("mine", text), {})


def test_a_model_or_a_shape_and_not_both(tmp_path):
    assert find_subject(None, "qwen2.5-1.5b").name == "qwen2.5-1.5b.json"
    own = tmp_path / "config.json"
    own.touch()
    assert find_subject(None, str(own)) == own
    for model, shape in ((None, None), ("m", "qwen2.5-1.5b")):
        with pytest.raises(ConfigError, match="and not both"):
            find_subject(model, shape)
    with pytest.raises(ConfigError, match="or one of"):
        find_subject(None, "huge")


def test_the_command_is_recorded_without_folders():
    flags = {"weight_type": "int8", "threads": None}
    assert command_line(Path("/somewhere/m.gguf"), None, "/else/mine.toml", flags) == (
        "ullage bench engine m.gguf --scenario mine --weight-type int8"
    )
    assert command_line(Path("/x/shape.json"), "shape", "full", {}) == (
        "ullage bench engine --dummy-weights shape --scenario full"
    )


def test_json_has_the_headline_figures(requests, tmp_path):
    shown = engine("--dummy-weights", "qwen2.5-0.5b", "--format", "json", "--output", str(tmp_path))
    assert json.loads(shown)["start_s"] == 1.0
    assert requests[0].is_dummy
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_table_has_speed_memory_and_what_failed(requests, tmp_path):
    shown = engine("--dummy-weights", "qwen2.5-0.5b", "--scenario", "memory", "--output", str(tmp_path), "--plots")
    assert "+2.0%" in shown
    assert "broken is out" in shown
    assert [path.name for path in tmp_path.glob("*.png")] == ["2026-11-30-tiny-int8-memory-memory.png"]
