"""``ullage plan`` as people and scripts call it: exit codes, JSON, and one clear line for nonsense."""

from __future__ import annotations

import json
import os

import pytest
from tests.unit.plan.start_up_cases import CASES, cases

from ullage.cli import main as cli

LLAMA = str(CASES / "configs/llama31-8b-3090-20k.json")
ISSUED = [
    *("--engine", "vllm", "--engine-version", "0.11.0", "--memory", "23.58GiB", "--memory-utilization", "0.9"),
    *("--kv-memory", "3.81GiB", "--kv-dtype", "bf16", "--block-size", "16", "--tensor-parallel", "1"),
    *("--pipeline-parallel", "1", "--max-model-len", "20000", "--max-num-batched-tokens", "8192"),
]


def answer(capsys, *arguments: str) -> tuple[int, dict]:
    code = cli.run(["plan", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_script_gets_what_the_engine_would_print(capsys):
    code, plan = answer(capsys, LLAMA, *ISSUED)
    assert code == 0
    assert plan["fits"] is True
    assert plan["weights"]["bytes"] == 16_060_522_496
    assert plan["kv"]["bytes_per_token_per_rank"] == 2 * 32 * 8 * 128 * 2
    assert plan["kv"]["num_blocks"] == 1950
    assert plan["kv"]["capacity_tokens"] == 1950 * 16
    assert plan["kv"]["max_concurrency"] == 1.56
    assert plan["kv"]["memory_bytes_per_rank"] == int(3.81 * 2**30)
    assert plan["reasons"] == plan["alternatives"] == []


def test_what_does_not_fit_exits_with_1_and_says_what_would(capsys):
    code, plan = answer(capsys, LLAMA, "--memory", "24GiB", "--concurrency", "16", "--max-model-len", "8192")
    assert code == 1
    assert plan["fits"] is False
    assert "16 requests of 8,192 tokens need 16.0 GiB" in plan["reasons"][0]
    assert {"tensor_parallel": 2} in [alternative["changes"] for alternative in plan["alternatives"]]


def test_gib_and_gb_are_told_apart(capsys):
    sizes = [
        answer(capsys, LLAMA, "--memory", text, "--max-model-len", "64")[1]["device"]["memory_bytes_per_rank"]
        for text in ("24GiB", "24GB")
    ]
    assert sizes == [24 * 2**30, 24 * 10**9]


def test_a_case_is_answered_as_its_engine(capsys, tmp_path):
    case = next(case for case in cases("exact") if case.name == "gptoss20b-llamacpp")
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case.file()))
    code, said = answer(capsys, str(CASES / case.raw["config"]), "--as-engine", str(file))
    assert code == 0
    assert said["engine_report"]["swa_cells"] == 768
    assert said["engine_report"]["max_concurrency"] is None
    assert said["implausible"] is False


@pytest.mark.parametrize("case", cases("negative-control"), ids=lambda case: case.name)
def test_a_negative_control_is_called_implausible(capsys, tmp_path, case):
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case.file()))
    _, said = answer(capsys, str(CASES / case.raw["config"]), "--as-engine", str(file))
    assert said["implausible"] is True
    assert said["reasons"]


@pytest.mark.parametrize("output", ["table", "md", "html", "svg"])
def test_every_form_names_the_accounts_and_the_device(capsys, output):
    assert cli.run(["plan", LLAMA, "--memory", "40GiB", "--max-model-len", "8192", "--format", output]) == 0
    shown = capsys.readouterr().out
    assert "weights" in shown
    assert "KV cache" in shown
    assert "40" in shown


def test_single_questions_have_single_answers(capsys):
    device = ["--memory", "24GiB", "--max-model-len", "8192"]
    assert cli.run(["plan", LLAMA, *device, "--find", "concurrency"]) == 0
    assert capsys.readouterr().out == "4 requests of 8,192 tokens at once\n"
    assert answer(capsys, LLAMA, *device, "--concurrency", "16", "--find", "context") == (0, {"context": 2144})


def test_devices_that_do_are_listed_least_memory_first(capsys):
    code, found = answer(capsys, LLAMA, "--max-model-len", "8192", "--find", "devices")
    assert code == 0
    assert len(found) > 5
    assert all(choice["count"] >= 1 for choice in found)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--memory", "-5GiB"], "memory"),
        (["--memory", "24G"], "24G"),
        (["--memory", "24parsecs"], "24parsecs"),
        (["--memory", "nan"], "nan"),
        (["--memory", "0GiB"], "memory must be above 0"),
        (["--memory", "24GiB,24GiB"], "2 devices"),
        (["--memory-utilization", "nan"], "--memory-utilization"),
        (["--memory-utilization", "1.5"], "memory_utilization"),
        (["--headroom", "-1"], "--headroom"),
        (["--headroom", "0.2", "--memory-utilization", "0.9"], "two rules"),
        (["--tensor-parallel", "0"], "--tensor-parallel"),
        (["--tensor-parallel", "3"], "3"),
        (["--pipeline-parallel", "99"], "pipeline_parallel"),
        (["--expert-parallel", "2"], "experts"),
        (["--concurrency", "-1"], "--concurrency"),
        (["--kv-dtype", "fp7"], "fp7"),
        (["--weight-type", "fp7"], "fp7"),
        (["--engine-version", "new"], "engine_version"),
        (["--device", "abacus"], "abacus"),
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_one_clear_line(capsys, arguments, named):
    given = arguments if arguments[0] in ("--memory", "--device") else ["--memory", "80GiB", *arguments]
    assert cli.run(["plan", LLAMA, *given]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert named in shown[0]
    assert len(shown) <= 2


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads((CASES / "configs/llama31-8b-3090-20k.json").read_bytes()), **fields}).encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"[" * 100_000, "JSON"),
        (bytes(range(256)) * 8, "JSON"),
        (b"GGUF" + bytes(20), "GGUF"),
        (b" " * (17 << 20), "larger"),
        (changed(num_hidden_layers=0), "num_hidden_layers"),
        (changed(num_hidden_layers=-3), "num_hidden_layers"),
        (changed(num_key_value_heads=7), "num_key_value_heads"),
        (changed(hidden_size=float("nan")), "hidden_size"),
    ],
    ids=["empty", "torn", "list", "deep", "binary", "GGUF", "huge", "0 layers", "negative", "heads", "NaN"],
)
def test_a_model_that_is_none_is_one_clear_line(capsys, tmp_path, content, named):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert cli.run(["plan", str(file), "--memory", "24GiB"]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert named in shown[0]
    assert len(shown) <= 2


def test_a_folder_without_a_model_and_an_unknown_name_are_refused(capsys, tmp_path):
    assert cli.run(["plan", str(tmp_path)]) == 2
    assert "without config.json" in capsys.readouterr().err
    assert cli.run(["plan", "lama-3.1-8b"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert cli.run(["plan"]) == 2


def test_a_log_is_read_back(capsys, tmp_path):
    log = tmp_path / "vllm.log"
    lines = "vLLM API server version 0.11.0\nAvailable KV cache memory: 3.81 GiB\nGPU KV cache size: {} tokens\n"
    log.write_text(lines.format("31,232"))
    code, (line,) = answer(capsys, LLAMA, "--against", str(log))
    assert (code, line["planned"], line["cause"]) == (0, 31200.0, "")
    log.write_text(lines.format("62,464"))
    assert cli.run(["plan", LLAMA, "--against", str(log)]) == 1
    assert "fp8" in capsys.readouterr().out
    assert cli.run(["plan", "--against", str(log)]) == 2
    assert cli.run(["plan", LLAMA, "--against", str(tmp_path)]) == 2


@pytest.mark.parametrize("option", ["--as-engine", "--against", "--request-log"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "nothing"])
def test_what_is_no_file_is_refused_without_waiting(capsys, tmp_path, option, kind):
    path = tmp_path / "input"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    assert cli.run(["plan", LLAMA, "--memory", "24GiB", option, str(path)]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert "no such file" in shown[0]
    assert len(shown) <= 2


def test_a_model_that_is_a_pipe_is_refused_without_waiting(capsys, tmp_path):
    path = tmp_path / "config.json"
    os.mkfifo(path)
    assert cli.run(["plan", str(path), "--memory", "24GiB"]) == 2
    assert "neither a file nor a folder" in capsys.readouterr().err


def test_a_log_of_another_engine_than_the_one_named_is_refused(capsys, tmp_path):
    log = tmp_path / "log"
    log.write_text("INFO GPU KV cache size: 31,232 tokens\n")
    assert cli.run(["plan", LLAMA, "--against", str(log), "--engine", "llamacpp"]) == 2
    assert "a log of vllm, not of llamacpp" in capsys.readouterr().err
