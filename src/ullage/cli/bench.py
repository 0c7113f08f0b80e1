"""``ullage bench``: how fast a model runs in this process on this machine.

Decode speed is the difference between a long and a short run of the same prompts, so that neither prefill nor anything
else that happens once counts. Prompts differ from each other and from run to run: the prefix cache can't help.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import click

from ullage.base.config import settings_of
from ullage.cli.settings import BENCH
from ullage.cli.settings_flags import SettingsCommand, load_all
from ullage.engine.build import EngineOptions

if TYPE_CHECKING:
    from ullage.engine.llm import LLM

BATCH_SIZES = (1, 8, 32)
PROMPT_TOKENS = 16
PREFILL_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Speed:
    """One row: what was measured, and tokens per second over all sequences."""

    what: str
    num_sequences: int
    tokens_per_second: float


@click.command(cls=SettingsCommand, sections=BENCH)
@click.argument("model")
@click.option("--decode-tokens", type=click.IntRange(2), default=64, show_default=True, help="Tokens per sequence.")
def bench(model: str, decode_tokens: int, **flags: object) -> None:
    """Measure prefill and decode speed of MODEL in this process."""
    from rich.console import Console
    from rich.table import Table

    from ullage.engine.llm import LLM

    (options,) = load_all(BENCH, flags)
    table = Table("what", "sequences", "tokens/s", "per sequence")
    console = Console()
    with LLM(model, **{name: getattr(options, name) for name in settings_of(EngineOptions)}) as llm:
        runs_on = llm.runner_name
        with console.status("measuring"):
            for speed in measure(llm, decode_tokens, [n for n in BATCH_SIZES if n <= options.max_num_seqs]):
                each = speed.tokens_per_second / speed.num_sequences
                table.add_row(speed.what, str(speed.num_sequences), f"{speed.tokens_per_second:.1f}", f"{each:.1f}")
    console.print(f"{model} on {runs_on}, {decode_tokens} tokens per sequence", highlight=False)
    console.print(table)


def measure(llm: LLM, decode_tokens: int, batch_sizes: list[int]) -> list[Speed]:
    """Prefill once, then decode at each batch size."""
    starts = count(1000, step=7)  # a prompt of its own for every sequence of every run

    def seconds(num_sequences: int, prompt_tokens: int, max_tokens: int) -> float:
        from ullage.engine.sampling_params import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        prompts = [
            tuple(range(start, start + prompt_tokens)) for start, _ in zip(starts, range(num_sequences), strict=False)
        ]
        begun = time.perf_counter()
        llm.generate(list(prompts), sampling)
        return time.perf_counter() - begun

    seconds(1, PROMPT_TOKENS, 2)  # warms caches and threads
    speeds = [Speed("prefill", 1, PREFILL_TOKENS / seconds(1, PREFILL_TOKENS, 1))]
    for n in batch_sizes:
        decoding = seconds(n, PROMPT_TOKENS, decode_tokens) - seconds(n, PROMPT_TOKENS, 1)
        speeds.append(Speed("decode", n, n * (decode_tokens - 1) / decoding))
    return speeds
