"""The peer's script, run with a stand-in for its library."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ullage.base.errors import ConfigError, EngineError
from ullage.ops.accuracy.feeding import batch, one_row, prefill
from ullage.ops.accuracy.llamacpp import LlamaCppLogits
from ullage.ops.accuracy.pieces import Pieces

PIECES = Pieces(((3, 1, 4, 1, 5), (9, 2, 6), (5, 3)), 10)
VOCABULARY = 7

# A library whose logits say which tokens the sequence holds up to the row: token at position p adds (p + 1) * token.
STAND_IN = """
import ctypes
from types import SimpleNamespace as Space
__version__ = "9.9"
print("a library that talks")
held, rows = {}, []
def llama_model_default_params(): return Space()
def llama_model_load_from_file(path, params): return b"nowhere" not in path
def llama_context_default_params(): return Space(type_k=1)
def llama_init_from_model(model, params):
    assert params.n_ctx % params.n_seq_max == 0
    return params
def llama_model_get_vocab(model): return model
def llama_vocab_n_tokens(vocab): return 7
def llama_get_memory(context): return held
def llama_memory_seq_rm(memory, sequence, start, stop): memory.pop(sequence, None)
def llama_batch_init(n, embd, n_seq):
    ids = [[0] for _ in range(n)]
    return Space(n_tokens=0, token=[0] * n, pos=[0] * n, n_seq_id=[0] * n, seq_id=ids, logits=[0] * n)
def llama_decode(context, batch):
    rows.clear()
    for i in range(batch.n_tokens):
        if batch.token[i] == 99:
            return 3
        tokens = held.setdefault(batch.seq_id[i][0], [])
        assert len(tokens) == batch.pos[i]
        tokens.append(batch.token[i])
        total = sum((p + 1) * token for p, token in enumerate(tokens))
        rows.append((ctypes.c_float * 7)(*[total + j for j in range(7)]))
    return 0
def llama_get_logits_ith(context, row): return ctypes.cast(rows[row], ctypes.POINTER(ctypes.c_float))
"""


@pytest.fixture
def peers(tmp_path) -> Path:
    python = tmp_path / "llamacpp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / "llama_cpp.py").write_text(STAND_IN, "utf-8")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n', "utf-8")
    python.chmod(0o755)
    (tmp_path / "tiny.gguf").touch()
    return tmp_path


def source(peers: Path, pieces: Pieces = PIECES, name: str = "tiny.gguf") -> LlamaCppLogits:
    return LlamaCppLogits(peers, peers / name, pieces, threads=1)


@pytest.mark.parametrize("feeding", [one_row(PIECES), prefill(PIECES, 2), batch(PIECES, 3, 2)], ids=lambda f: f.name)
def test_each_measured_row_comes_back_after_its_own_piece(peers, feeding):
    expected = []
    for part in (part for step in feeding.steps for part in step if part.measured):
        for position in range(part.start, part.stop):
            tokens = PIECES.token_ids[part.piece][: position + 1]
            expected.append(sum((p + 1) * token for p, token in enumerate(tokens)))
    logits = np.concatenate(list(source(peers).run(feeding)))
    assert logits.shape == (10, VOCABULARY)
    assert logits[:, 0].tolist() == expected
    assert (logits - logits[:, :1] == np.arange(VOCABULARY)).all()


def test_version_and_kv_type_are_known_after_a_run(peers):
    engine = source(peers)
    list(engine.run(one_row(PIECES)))
    assert engine.version == "9.9"
    assert engine.formats["kv_cache_dtype"] == "f16"


def test_a_step_that_fails_is_an_error_with_the_peer_s_last_words(peers):
    pieces = Pieces(((1, 2, 99),), 3)
    with pytest.raises(EngineError, match=r"llama\.cpp failed: .*llama_decode answered 3"):
        list(source(peers, pieces).run(one_row(pieces)))


def test_a_library_that_is_missing_is_an_error_with_the_peer_s_last_words(peers):
    (peers / "llama_cpp.py").write_text("raise ImportError('no such library')", "utf-8")
    with pytest.raises(EngineError, match=r"llama\.cpp failed: .*no such library"):
        list(source(peers).run(one_row(PIECES)))


def test_a_reader_that_leaves_early_ends_the_process(peers):
    run = source(peers).run(one_row(PIECES))
    next(run)
    run.close()


def test_no_environment_and_no_file_are_refused(peers):
    with pytest.raises(ConfigError, match="has no llamacpp/bin/python"):
        source(peers / "llamacpp")
    with pytest.raises(ConfigError, match=r"llama\.cpp runs GGUF files"):
        source(peers, name="llamacpp")
