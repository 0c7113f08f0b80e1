"""Which peers are there, and why one can't run a model. None is started."""

from __future__ import annotations

import json

import pytest
from tests.model_fixtures import tiny_model, write_gguf

from ullage.base.errors import EngineError
from ullage.ops.bench import peers
from ullage.ops.bench.peers import PeerInput, find_peers


@pytest.fixture
def started(monkeypatch):
    """The openings of what would have been started, by name."""
    openings = {}
    monkeypatch.setattr(peers, "ProcessSubject", lambda name, command, opening: openings.update({name: opening}))
    return openings


@pytest.fixture
def folder(tmp_path):
    for name in ("openvino", "llamacpp", "vllm"):
        python = tmp_path / "peers" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
    return tmp_path / "peers"


def given(tmp_path, model, *, is_dummy=False, hf_folder=None):
    return PeerInput(model, is_dummy, hf_folder, tmp_path, {"threads": 2})


def test_only_peers_with_an_environment_are_launched(folder, tmp_path):
    (folder / "vllm" / "bin" / "python").unlink()
    launches = find_peers(folder, given(tmp_path, tmp_path / "m.gguf"))
    assert list(launches) == ["OpenVINO, u8 KV", "OpenVINO, bf16 KV", "llama.cpp", "llama.cpp, Q4_0"]
    assert find_peers(tmp_path / "nowhere", given(tmp_path, tmp_path / "m.gguf")) == {}


def test_a_gguf_file_is_given_as_it_is_and_written_out_for_vllm(folder, tmp_path, started):
    model = write_gguf(tmp_path / "m.gguf", tiny_model("llama"))
    launches = find_peers(folder, given(tmp_path, model))
    for name in ("OpenVINO, u8 KV", "OpenVINO, bf16 KV", "llama.cpp", "vLLM, bf16"):
        launches[name]()
    assert started["OpenVINO, u8 KV"] == {"threads": 2, "model": str(model), "kv_type": "u8"}
    assert started["OpenVINO, bf16 KV"]["kv_type"] == "bf16"
    assert started["llama.cpp"]["model"] == str(model)
    written = tmp_path / "bf16"
    assert started["vLLM, bf16"] == {"threads": 2, "model": str(written), "dummy": False}
    assert sorted(path.name for path in written.iterdir()) == ["config.json", "model.safetensors"]
    launches["vLLM, bf16"]()  # what is written already is used


def test_a_folder_that_somebody_has_is_used(folder, tmp_path, started):
    find_peers(folder, given(tmp_path, tmp_path / "m.gguf", hf_folder=tmp_path / "hf"))["vLLM, bf16"]()
    assert started["vLLM, bf16"]["model"] == str(tmp_path / "hf")


def test_a_dummy_is_for_vllm_alone(folder, tmp_path, started):
    config = tmp_path / "shape.json"
    config.write_text(json.dumps({"hidden_size": 64}))
    launches = find_peers(folder, given(tmp_path, config, is_dummy=True))
    launches["vLLM, bf16"]()
    assert started["vLLM, bf16"]["dummy"] is True
    assert (tmp_path / "dummy" / "config.json").read_text() == config.read_text()
    for name in ("OpenVINO, u8 KV", "llama.cpp", "llama.cpp, Q4_0"):
        with pytest.raises(EngineError, match="reads GGUF files"):
            launches[name]()
