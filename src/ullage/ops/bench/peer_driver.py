"""One engine in a process of its own, driven by lines of JSON. Needs nothing of Ullage: it runs in the peers'
environments, with their Python.

    python peer_driver.py openvino | llamacpp | vllm
    python peer_driver.py requantize MODEL TO TYPE       (llama.cpp's own converter)

First line in: ``{"model": ..., "first_prompt": [ids], ...}``. When the model's first token is there, a description goes
out. Then ``{"prompts": [[ids], ...], "new_tokens": n}`` is answered by ``{"seconds": ..., "decode_seconds": ...}``, and
any other line by the description. Greedy, end of sequence ignored.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

Prompts = Sequence[Sequence[int]]
Generate = Callable[[], "float | None"]
"""Returns the seconds from a single sequence's first token to its last, where the engine can tell."""
Prepare = Callable[[Prompts, int], Generate]
"""Makes ready to generate so many tokens for each prompt; what it takes isn't counted."""
Describe = Callable[[], dict[str, Any]]
Load = Callable[[Mapping[str, Any]], "tuple[Prepare, Describe]"]

STEP_TOKENS = 512


def answer_lines(load: Load) -> None:
    """Serves the conversation above on standard input and output, until input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print what they like

    def answer(fields: Mapping[str, Any]) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    opening = json.loads(sys.stdin.readline())
    prepare, describe = load(opening)
    prepare([opening["first_prompt"]], 1)()
    answer(describe())
    for line in sys.stdin:
        request = json.loads(line)
        if "prompts" not in request:
            answer(describe())
            continue
        generate = prepare(request["prompts"], request["new_tokens"])
        began = time.perf_counter()
        decode_seconds = generate()
        answer({"seconds": time.perf_counter() - began, "decode_seconds": decode_seconds})


def load_openvino(opening: Mapping[str, Any]) -> tuple[Prepare, Describe]:
    genai, openvino, np = import_module("openvino_genai"), import_module("openvino"), import_module("numpy")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = -(-opening["kv_bytes"] // (1 << 30))
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.max_num_seqs = opening["max_num_seqs"]
    scheduler.enable_prefix_caching = False
    properties = {"KV_CACHE_PRECISION": opening["kv_type"], "INFERENCE_NUM_THREADS": opening["threads"]}
    pipe = genai.LLMPipeline(opening["model"], "CPU", scheduler_config=scheduler, **properties)

    def prepare(prompts: Prompts, new_tokens: int) -> Generate:
        config = genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        token_ids = np.array(prompts, np.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(token_ids), openvino.Tensor(np.ones_like(token_ids)))

        def generate() -> float | None:
            result = pipe.generate(inputs, config)
            if any(len(tokens) != new_tokens for tokens in result.tokens):
                raise RuntimeError("it generated another number of tokens than asked for")
            alone = len(prompts) == 1 and new_tokens > 1
            return float(result.perf_metrics.get_tpot().mean) / 1000 * (new_tokens - 1) if alone else None

        return generate

    return prepare, lambda: {"version": version("openvino-genai")}


class LlamaCpp:
    """Through the low-level calls: the binding's own class decodes one sequence at a time."""

    def __init__(self, opening: Mapping[str, Any]) -> None:
        self._cpp = cpp = import_module("llama_cpp")
        cpp.llama_backend_init()
        self._model = cpp.llama_model_load_from_file(opening["model"].encode(), cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError("it can't load the model")
        self._threads = opening["threads"]
        self._sampler = cpp.llama_sampler_init_greedy()
        self._batch = cpp.llama_batch_init(STEP_TOKENS, 0, 1)
        self._shape = (0, 0)
        self._context: Any = None

    def prepare(self, prompts: Prompts, new_tokens: int) -> Generate:
        length = len(prompts[0])
        total = length + new_tokens
        self._empty_context(len(prompts), total)
        self._run([(1, 0, sequence, True) for sequence in range(len(prompts))])  # warms it
        self._empty_context(len(prompts), total)
        rows = [(t, p, s, p == length - 1) for s, prompt in enumerate(prompts) for p, t in enumerate(prompt)]

        def generate() -> float | None:
            tokens = self._run(rows)
            began = time.perf_counter()
            for position in range(length, total - 1):
                tokens = self._run([(token, position, sequence, True) for sequence, token in tokens.items()])
            return time.perf_counter() - began if len(prompts) == 1 else None

        return generate

    def _empty_context(self, num_sequences: int, num_tokens: int) -> None:
        """One of another shape than the last is made anew."""
        cpp, shape = self._cpp, (num_sequences, -(-num_tokens // 256) * 256)
        if shape != self._shape:
            if self._context:
                cpp.llama_free(self._context)
            params = cpp.llama_context_default_params()
            params.n_seq_max, params.n_ctx = num_sequences, shape[0] * shape[1]
            params.n_batch = params.n_ubatch = STEP_TOKENS
            params.n_threads = params.n_threads_batch = self._threads
            self._context, self._shape = cpp.llama_init_from_model(self._model, params), shape
            if not self._context:
                raise RuntimeError("it can't make a context")
        cpp.llama_memory_clear(cpp.llama_get_memory(self._context), False)

    def _run(self, rows: Sequence[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Runs (token, position, sequence, wants the next token) rows; next tokens by sequence."""
        cpp, batch, chosen = self._cpp, self._batch, {}
        for start in range(0, len(rows), STEP_TOKENS):
            piece = rows[start : start + STEP_TOKENS]
            batch.n_tokens = len(piece)
            for i, (token, position, sequence, wanted) in enumerate(piece):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            if cpp.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode failed")
            for i, (_, _, sequence, wanted) in enumerate(piece):
                if wanted:
                    chosen[sequence] = cpp.llama_sampler_sample(self._sampler, self._context, i)
        return chosen


def load_llamacpp(opening: Mapping[str, Any]) -> tuple[Prepare, Describe]:
    return LlamaCpp(opening).prepare, lambda: {"version": f"llama-cpp-python {version('llama-cpp-python')}"}


def load_vllm(opening: Mapping[str, Any]) -> tuple[Prepare, Describe]:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(-(-opening["kv_bytes"] // (1 << 30)))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    vllm = import_module("vllm")
    llm = vllm.LLM(
        opening["model"],
        dtype="bfloat16",
        max_model_len=opening["max_model_len"],
        max_num_seqs=opening["max_num_seqs"],
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        load_format="dummy" if opening["dummy"] else "auto",
    )

    def prepare(prompts: Prompts, new_tokens: int) -> Generate:
        params = vllm.SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]

        def generate() -> float | None:
            llm.generate(inputs, params, use_tqdm=False)
            return None

        return generate

    return prepare, lambda: {"version": version("vllm")}


def requantize(model: str, to: str, file_type: str) -> None:
    """Writes a GGUF file with its weights in another type, as llama.cpp does it."""
    cpp = import_module("llama_cpp")
    params = cpp.llama_model_quantize_default_params()
    params.ftype = getattr(cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    params.allow_requantize = True
    if cpp.llama_model_quantize(model.encode(), to.encode(), params):
        raise SystemExit(f"llama.cpp can't convert the file to {file_type}")


if __name__ == "__main__":
    if sys.argv[1] == "requantize":
        requantize(*sys.argv[2:])
    else:
        answer_lines({"openvino": load_openvino, "llamacpp": load_llamacpp, "vllm": load_vllm}[sys.argv[1]])
