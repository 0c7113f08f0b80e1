"""What constrained decoding costs: the same batch free and bound to a JSON schema, in turns.

python -m ullage.ops.bench.constrained smollm2
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ullage.engine.constraint import Constraint
from ullage.engine.llm import LLM
from ullage.engine.sampling_params import SamplingParams

PEOPLE = {
    "type": "array",
    "minItems": 1000,  # never done before max_tokens
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True)
class ConstrainedCost:
    """Medians of tokens per second."""

    free: float
    constrained: float

    @property
    def share(self) -> float:
        """Of the free speed that the constraint costs."""
        return 1 - self.constrained / self.free


def measure(llm: LLM, *, batch_size: int = 32, num_tokens: int = 96, rounds: int = 5) -> ConstrainedCost:
    prompts: list[str | tuple[int, ...]] = [f"List number {i} of people, as JSON:\n" for i in range(batch_size)]
    free = SamplingParams(max_tokens=num_tokens, temperature=0.8, ignore_eos=True)
    constraint = Constraint("json_schema", json.dumps(PEOPLE))
    bound = SamplingParams(max_tokens=num_tokens, temperature=0.8, constraint=constraint)

    def tokens_per_second(sampling: SamplingParams) -> float:
        began = time.perf_counter()
        completions = llm.generate(prompts, sampling)
        return sum(len(completion.token_ids) for completion in completions) / (time.perf_counter() - began)

    tokens_per_second(bound)  # compiles, and warms both up
    pairs = [(tokens_per_second(free), tokens_per_second(bound)) for _ in range(rounds)]
    return ConstrainedCost(*(statistics.median(speeds) for speeds in zip(*pairs, strict=True)))


def main(arguments: Sequence[str]) -> None:
    (model,) = arguments
    with LLM(model, max_model_len=512) as llm:
        cost = measure(llm)
    print(f"free {cost.free:.0f} tokens/s, constrained {cost.constrained:.0f} tokens/s: {cost.share:.1%} less")


if __name__ == "__main__":
    main(sys.argv[1:])
