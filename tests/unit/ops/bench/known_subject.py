"""An engine whose timings are known, and a result made of them."""

from __future__ import annotations

from typing import Any

from ullage.base.errors import EngineError
from ullage.ops.bench.subject import Answer, Prompts

ACCOUNTS = {
    name: {"planned_bytes": size, "allocated_bytes": size}
    for name, size in {"weights": 600, "kv_pool": 300, "workspace": 60, "logits": 30, "runtime": 10}.items()
}


class KnownSubject:
    """Needs ``1 / prefill`` seconds for a prompt token, and ``step`` for a step of new tokens.

    :param tells: whether it says when the first token of a single sequence came
    :param fails_after: calls
    """

    def __init__(
        self, name: str, *, start: float = 1.0, prefill: float = 1000.0, step: float = 0.02, tells: bool = True,
        fails_after: int | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.start_seconds = start
        self._prefill, self._step, self._tells, self._calls_left = prefill, step, tells, fails_after
        self.prompts: list[Prompts] = []
        self.closed = False

    def generate(self, prompts: Prompts, new_tokens: int) -> Answer:
        if self._calls_left is not None:
            if self._calls_left == 0:
                raise EngineError(f"{self.name} ended with exit code -11: it said nothing")
            self._calls_left -= 1
        self.prompts.append(prompts)
        decode = self._step * (new_tokens - 1)
        seconds = sum(map(len, prompts)) / self._prefill + decode
        return Answer(seconds, decode if self._tells and len(prompts) == 1 else None)

    def describe(self) -> dict[str, Any]:
        return {
            "version": "1.2.3",
            "runner": "known (2 threads)",
            "warning": None,
            "accounts": ACCOUNTS,
            "resident_bytes": 1010,
            "capacity_tokens": 4096,
            "block_size": 32,
            "token_bytes": 8,
            "stage_seconds": None,
        }

    def peak_resident_bytes(self, prompts: Prompts, new_tokens: int) -> int:
        self.generate(prompts, new_tokens)
        return 1020

    def close(self) -> None:
        self.closed = True
