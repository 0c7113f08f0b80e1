"""``ullage bench crowd``: more requests than the KV pool holds, and a tenant beside one that floods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ullage.base.config import settings_of
from ullage.cli.settings import BENCH
from ullage.cli.settings_flags import SettingsCommand, load_all

if TYPE_CHECKING:
    from ullage.engine.build import AssembledEngine, EngineOptions
    from ullage.engine.client import EngineClient
    from ullage.models.model_file import ModelFile
    from ullage.models.tokenizer import Tokenizer

Result = TypeVar("Result")


@click.command(cls=SettingsCommand, sections=BENCH)
@click.argument("model")
@click.option("--clients", type=click.IntRange(2), default=200, show_default=True, help="Of the small pool.")
@click.option("--pool-tokens", type=click.IntRange(1), default=600, show_default=True, help="In the small pool.")
@click.option("--seconds", type=click.IntRange(1), default=40, show_default=True, help="Of each run with tenants.")
@click.option("--scenario", type=click.Choice(["both", "small-pool", "tenants"]), default="both", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Write a result file into this folder.")
def crowd(
    model: str, *, clients: int, pool_tokens: int, seconds: int, scenario: str, output: Path | None, **flags: object
) -> None:
    """Load MODEL with more than its KV pool holds, and with a tenant that floods it."""
    (options,) = load_all(BENCH, flags)
    result = _crowd(model, options, clients, pool_tokens, seconds, scenario)
    if output is not None:
        from ullage.ops.bench.result import write_result

        click.echo(f"result: {write_result(result, output)}")


def _crowd(
    model: str, options: EngineOptions, clients: int, pool_tokens: int, seconds: int, scenario: str
) -> dict[str, Any]:
    from ullage.models.open_model import open_model
    from ullage.models.store import find_model
    from ullage.ops.bench.machine import describe_commit, describe_machine, describe_versions
    from ullage.ops.bench.run import RESULT_FORMAT

    began = datetime.now(UTC)
    opened = open_model(find_model(model))
    summary: dict[str, Any] = {}
    try:
        tokenizer = opened.tokenizer()
        if scenario in ("both", "small-pool"):
            summary["small_pool"] = _small_pool(opened, tokenizer, options, clients, pool_tokens)
        if scenario in ("both", "tenants"):
            summary["tenants"] = _tenants(opened, tokenizer, options, seconds)
    finally:
        opened.close()
    return {
        "format": RESULT_FORMAT,
        "kind": "crowd",
        "scenario": f"crowd-{scenario}",
        "date": began.strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"ullage bench crowd {Path(model).name} --clients {clients} --pool-tokens {pool_tokens} "
        f"--seconds {seconds} --scenario {scenario}",
        **describe_commit(),
        "versions": describe_versions(),
        "machine": describe_machine(),
        "model": {"name": opened.path.name},
        "settings": {name: getattr(options, name) for name in settings_of(type(options))},
        "summary": summary,
    }


def _small_pool(
    model: ModelFile, tokenizer: Tokenizer, options: EngineOptions, clients: int, pool_tokens: int
) -> dict[str, Any]:
    """Elastic and guaranteed admission in the small pool, beside as many at once as fit, with room for all."""
    from ullage.engine.build import assemble_engine
    from ullage.ops.bench.crowd import random_requests, run_all

    stops = sorted({token_id for text in (".", ",", " the", "\n") for token_id in tokenizer.encode(text)[-1:]})
    requests = random_requests(clients, model.spec.vocab_size, stops, options.seed)
    # Log-spaced lengths aren't known before; a run with all seats tells how long outputs become.
    options = replace(options, max_model_len=min(512, pool_tokens), max_waiting_requests=clients)
    roomy = assemble_engine(model, tokenizer, replace(options, max_num_seqs=4))
    block_bytes = roomy.plan.block_size * roomy.plan.slot_bytes * roomy.plan.demand.num_groups
    baseline = _run(roomy, lambda engine: run_all(engine, requests))
    size_that_fits = max(1, int(pool_tokens // baseline["mean_tokens"]))
    click.echo(f"outputs and prompts have {baseline['mean_tokens']:.0f} tokens: {size_that_fits} fit")
    if size_that_fits != 4:
        roomy = assemble_engine(model, tokenizer, replace(options, max_num_seqs=size_that_fits))
        baseline = _run(roomy, lambda engine: run_all(engine, requests))
    runs = {"unconstrained": baseline}
    small = replace(options, kv_memory=pool_tokens // roomy.plan.block_size * block_bytes)
    for policy in ("elastic", "guaranteed"):
        built = assemble_engine(model, tokenizer, replace(small, admission=policy))
        runs[policy] = _run(built, lambda engine: run_all(engine, requests))
    for name, run in runs.items():
        run["share_of_unconstrained"] = run["tokens_per_second"] / baseline["tokens_per_second"]
        click.echo(
            f"{name:14} {run['tokens_per_second']:6.1f} tokens/s ({run['share_of_unconstrained']:.0%})  "
            f"{run['num_ended']} of {run['num_requests']} ended  longest wait {run['longest_queue_seconds']:.1f} s  "
            f"{run['num_preemptions']} preemptions, {run['most_preemptions_of_one']} of one at most"
        )
    return {"pool_tokens": pool_tokens, "size_that_fits": size_that_fits, "runs": runs}


def _tenants(model: ModelFile, tokenizer: Tokenizer, options: EngineOptions, seconds: int) -> dict[str, Any]:
    from ullage.engine.build import assemble_engine
    from ullage.ops.bench.crowd import measure_tenants

    options = replace(options, max_model_len=512, max_num_seqs=16)
    built = assemble_engine(model, tokenizer, options)
    vocab_size = model.spec.vocab_size
    summary = dict(
        _run(
            built,
            lambda engine: measure_tenants(
                engine, vocab_size=vocab_size, quiet_clients=8, flooding_clients=100, seconds=seconds
            ),
        )
    )
    click.echo(
        f"two tenants    the quiet one has {summary['share_of_tokens']:.1%} of the tokens; its first token after "
        f"{summary['quiet_median_first_token_seconds'] * 1000:.0f} ms, alone after "
        f"{summary['alone_median_first_token_seconds'] * 1000:.0f} ms (x {summary['first_token_ratio']:.2f}), "
        f"{summary['quiet_median_queue_seconds'] * 1000:.0f} ms of it in the queue"
    )
    return summary


def _run(built: AssembledEngine, work: Callable[[EngineClient], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        await built.engine.start()
        try:
            return await work(built.engine)
        finally:
            await built.engine.stop()

    return asyncio.run(run())
