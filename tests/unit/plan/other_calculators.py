"""What other calculators say of the cases. Run once for each, with the Python of an environment that has it:

    python -m venv .calculators && .calculators/bin/pip install kvfit hf-mem
    .calculators/bin/python tests/unit/plan/other_calculators.py kvfit
    .calculators/bin/python tests/unit/plan/other_calculators.py hf-mem

Writes ``cases/other_calculators/NAME.json``: for each case the bytes on one rank that it counts for one request, or
why it counts none. Each is asked by the function behind its command, for its command wants the hub.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

CASES = Path(__file__).parent / "cases"
BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q8_0/fp16": (34 / 32 + 2) / 2}


def kvfit(config: dict, dtype: str, tokens: int, ranks: int) -> float:
    from kvfit.architectures import estimate_cache

    cache = estimate_cache(config, context_tokens=tokens, kv_bytes=BYTES[dtype])
    return sum(part.bytes / min(ranks, part.tp_parallel_units or cache.kv_parallel_heads) for part in cache.components)


def hf_mem(config: dict, dtype: str, tokens: int, ranks: int) -> float:
    """It knows no ranks: they share evenly."""
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

    inner = config.get("text_config", config)
    names = {"bf16": "BF16", "fp16": "F16", "fp8": "F8_E4M3"}
    if dtype not in names:
        raise ValueError(f"no keys and values in {dtype}")
    return compute_safetensors_kv_cache_size(inner, names[dtype], tokens) / ranks


def tokens_of(given: dict) -> int | None:
    """Of the request that a case is about."""
    for name in ("max_model_len", "n_ctx", "max_total_tokens"):
        if name in given:
            return int(given[name])
    return None


def main(name: str) -> None:
    calculate = {"kvfit": kvfit, "hf-mem": hf_mem}[name]
    answers: dict[str, dict[str, object]] = {}
    for line in (CASES / "kv_logs.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        given = case["expect"].get("given", {})
        tokens, ranks = tokens_of(given), given.get("tensor_parallel_size", 1)
        if tokens is None:
            continue
        config = json.loads((CASES / case["config"]).read_text("utf-8"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                num_bytes = calculate(config, case["kv_dtype_name"], tokens, ranks)
                answers[case["id"]] = {"tokens": tokens, "bytes_per_rank": round(num_bytes)}
        except Exception as error:  # noqa: BLE001 - whatever another program raises is its answer
            answers[case["id"]] = {"tokens": tokens, "error": f"{type(error).__name__}: {error}"[:160]}
    found = {"calculator": name, "version": version(name), "answers": answers}
    folder = CASES / "other_calculators"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
