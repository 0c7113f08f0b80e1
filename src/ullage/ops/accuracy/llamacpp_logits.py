"""Runs in an environment that has llama-cpp-python, and knows nothing of the rest of this package.

    python llamacpp_logits.py < job.json > logits

Standard input is one JSON object: ``model`` (path of a GGUF file), ``threads``, ``pieces`` (lists of token ids) and
``steps`` (lists of [sequence, piece, start, stop, measured], as ``feeding.Part``). Standard output gets one JSON line
(version, vocab_size, kv_cache_dtype), then float32 [vocab_size] for each measured row in order.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

KV_NAMES = {0: "f32", 1: "f16", 30: "bf16"}  # ggml's numbers


def main() -> None:
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the library prints must not get among the logits
    job = json.load(sys.stdin)
    import llama_cpp  # type: ignore[import-not-found,unused-ignore]

    context, vocab_size, kv_name = _open(llama_cpp, job)
    header = {"version": llama_cpp.__version__, "vocab_size": vocab_size, "kv_cache_dtype": kv_name}
    output.write(json.dumps(header).encode() + b"\n")
    most_rows = max(_num_rows(step) for step in job["steps"])
    batch = llama_cpp.llama_batch_init(most_rows, 0, 1)
    for step in job["steps"]:
        _fill(llama_cpp, context, batch, step, job["pieces"])
        if code := llama_cpp.llama_decode(context, batch):
            raise SystemExit(f"llama_decode answered {code}")
        for row in range(batch.n_tokens):
            if batch.logits[row]:
                logits = llama_cpp.llama_get_logits_ith(context, row)
                output.write(memoryview((ctypes.c_float * vocab_size).from_address(_address(logits))))
    output.close()


def _open(llama_cpp: Any, job: dict[str, Any]) -> tuple[Any, int, str]:
    """A context with its own defaults, but for the sizes."""
    steps, longest = job["steps"], max(len(piece) for piece in job["pieces"])
    num_sequences = 1 + max(part[0] for step in steps for part in step)
    model = llama_cpp.llama_model_load_from_file(job["model"].encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp can't open {job['model']}")
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = num_sequences
    params.n_ctx = num_sequences * ((longest + 255) // 256 * 256)  # it divides by sequences, in steps of 256
    params.n_batch = params.n_ubatch = max(_num_rows(step) for step in steps)
    params.n_threads = params.n_threads_batch = job["threads"]
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp can't make a context")
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    return context, vocab_size, KV_NAMES.get(params.type_k, f"ggml type {params.type_k}")


def _fill(llama_cpp: Any, context: Any, batch: Any, step: list[Any], pieces: list[list[int]]) -> None:
    batch.n_tokens = 0
    for sequence, piece, start, stop, measured in step:
        if start == 0:
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), sequence, 0, -1)
        for position in range(start, stop):
            row = batch.n_tokens
            batch.token[row] = pieces[piece][position]
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = measured
            batch.n_tokens += 1


def _num_rows(step: list[Any]) -> int:
    return sum(stop - start for _, _, start, stop, _ in step)


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


if __name__ == "__main__":
    main()
