"""A whole run of the bench: real processes, a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.model_fixtures import tiny_model, write_gguf

from ullage.ops.bench.run import OURS

SCENARIO = """
[engine]
max_num_seqs = 2
max_model_len = 64
enable_prefix_caching = false

[[workload]]
name = "start_s"
kind = "start"
repeats = 2

[[workload]]
name = "decode1_tok_s"
kind = "decode"
prompt_tokens = 8
new_tokens = 4
repeats = 2

[[workload]]
name = "decode32_tok_s"
kind = "throughput"
num_sequences = 2
prompt_tokens = 8
new_tokens = 4
repeats = 1

[[workload]]
name = "memory"
kind = "memory"
num_sequences = 2
prompt_tokens = 8
new_tokens = 4
repeats = 1
kv_memory = ["1MiB", "2MiB"]
"""


@pytest.fixture
def environment(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")}
    return kept | {"ULLAGE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}


def test_a_run_is_measured_and_recorded(tmp_path, environment):
    model = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    (tmp_path / "short.toml").write_text(SCENARIO)
    python = tmp_path / "peers" / "llamacpp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)  # has no llama.cpp: the peer fails, and the run goes on
    command = [
        sys.executable,
        "-m",
        "ullage",
        "bench",
        "engine",
        str(model),
        "--scenario",
        str(tmp_path / "short.toml"),
    ]
    command += ["--format", "json", "--output", str(tmp_path / "out"), "--peers", str(tmp_path / "peers")]
    command += ["--runner", "numpy"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert {"start_s", "decode1_tok_s", "decode32_tok_s", "rooflines"} <= set(shown)
    (path,) = (tmp_path / "out").glob("*.json")
    text = path.read_text()
    assert str(tmp_path) not in text
    result = json.loads(text)
    points = {point["name"]: point["results"][OURS] for point in result["points"]}
    assert len(points["start_s"]["samples"]) == 2
    assert result["rooflines"]["read"]["median_bytes_per_second"] > 0
    pools = [points[f"memory-{size}"]["accounts"]["kv_pool"]["allocated_bytes"] for size in ("1MiB", "2MiB")]
    assert 0 < pools[0] < pools[1] <= 2 << 20
    assert "llama_cpp" in result["failures"]["llama.cpp"]
    assert result["memory"]["resident_bytes"] > 0
