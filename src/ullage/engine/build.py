"""From a model file and options to an engine: every part is built here, and gets its bytes from one ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ullage.base.config import setting
from ullage.base.errors import ConfigError, ModelFileError

if TYPE_CHECKING:
    from ullage.engine.client import EngineClient
    from ullage.engine.core import EngineCore
    from ullage.engine.runner import ModelRunner
    from ullage.engine.scheduler import SchedulerConfig
    from ullage.models.chat_template import ChatTemplate
    from ullage.models.model_file import ModelFile
    from ullage.models.spec import ModelSpec
    from ullage.models.tokenizer import Tokenizer
    from ullage.plan.ledger import MemoryLedger
    from ullage.plan.memory import Plan, PlanRequest

DEFAULT_WEIGHT_TYPE: Literal["file"] = "file"
DEFAULT_KV_TYPE: Literal["bf16"] = "bf16"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is run. A value that can't be honoured is refused, never adjusted."""

    max_model_len: int | None = setting(
        None, "Prompt + output tokens of one request at most.", shown_default="the model's context", at_least=2
    )
    max_num_seqs: int = setting(32, "Requests in one step at most.", at_least=1)
    max_num_batched_tokens: int = setting(
        512, "Tokens in one step at most; longer prompts run in chunks of this many at most.", at_least=1
    )
    target_itl_ms: int = setting(
        100,
        "Milliseconds between the tokens of running answers to stay under: prompts beside them run in smaller chunks; "
        "0 for no target.",
        at_least=0,
    )
    max_waiting_requests: int = setting(
        256, "Requests that may wait for their turn; one more is answered with 429.", at_least=1
    )
    max_waiting_tokens: int | None = setting(
        None,
        "Prompt tokens that may wait for their turn, all requests together.",
        shown_default="no bound of its own",
        at_least=1,
    )
    max_waiting_requests_per_tenant: int | None = setting(
        None, "Requests of one tenant that may wait.", shown_default="as many as may wait at all", at_least=1
    )
    max_waiting_tokens_per_tenant: int | None = setting(
        None, "Prompt tokens of one tenant that may wait.", shown_default="as many as may wait at all", at_least=1
    )
    admission: Literal["elastic", "guaranteed"] = setting(
        "elastic",
        "What is kept for a request that starts: its prompt and as much output as such requests had lately, so that "
        "more run at once and some may have to begin again; or all that it may ever need.",
    )
    max_preemptions: int = setting(
        3, "With elastic admission: how often one request may have to begin again; then it is guaranteed.", at_least=1
    )
    block_size: int = setting(
        32, "Tokens in a KV block, the unit in which memory is handed out and shared.", at_least=1
    )
    kv_memory: int | None = setting(
        None,
        "Size of the KV pool, absolute, like 64MiB.",
        shown_default="room for max-num-seqs full requests, up to 1 GiB or one such request",
        in_bytes=True,
    )
    enable_prefix_caching: bool = setting(True, "Reuse the keys and values of equal prompt beginnings.")
    weight_type: Literal["file", "bf16", "int8", "int4"] = setting(
        DEFAULT_WEIGHT_TYPE,
        "How the native runner holds matrices: as the file does (GGUF blocks without loss, else bf16), or rounded.",
    )
    kv_cache_dtype: Literal["bf16", "int8"] = setting(
        DEFAULT_KV_TYPE, "How the native runner holds keys and values; int8 has a scale per token and head."
    )
    isa: Literal["auto", "amx", "avx512", "avx2", "portable"] = setting(
        "auto", "Instruction set of the native runner; auto takes the best this processor has."
    )
    runner: Literal["auto", "native", "numpy"] = setting(
        "auto", "What runs the model; auto is native where the kernels were compiled, else the slow numpy reference."
    )
    threads: int | None = setting(None, "Threads of the native runner.", shown_default="one per core", at_least=1)
    seed: int = setting(0, "Seeds the requests that bring no seed of their own.", at_least=0)


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine and what its doors need besides. Not started yet; ``engine.stop`` frees the memory."""

    engine: EngineClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None for a base model: it can complete, not chat."""
    spec: ModelSpec
    plan: Plan
    runner_name: str
    warning: str | None
    """What the user must be told loudly: the model runs, but not as it should."""


@dataclass(frozen=True, slots=True)
class AssembledEngine:
    """An engine without the parts that only text needs. Not started yet; ``engine.stop`` frees the memory."""

    engine: EngineClient
    runner: ModelRunner
    plan: Plan
    warning: str | None
    """As of ``BuiltEngine``."""


@dataclass(frozen=True, slots=True)
class AssembledCore:
    """The part of an engine that needs a thread yet. ``core.close`` frees the memory."""

    core: EngineCore
    plan: Plan
    warning: str | None
    """As of ``BuiltEngine``."""


def build_engine(model_path: Path, options: EngineOptions) -> BuiltEngine:
    """Opens, plans, allocates, loads.

    :raises ModelFileError: the model can't be read or run
    :raises ConfigError: an option that this model or machine can't honour
    :raises PlanError: the plan needs more memory than there is; nothing was allocated
    :raises EngineError: a part took other bytes than planned
    """
    from ullage.models.chat_template import ChatTemplate
    from ullage.models.open_model import open_model

    make_plan_request(options, choose_runner(options.runner)[0])  # what can't be honoured is told before files are read
    model = open_model(model_path)
    try:
        tokenizer = model.tokenizer()
        check_tokenizer(model_path, tokenizer, model.spec)
        source = model.chat_template()
        chat_template = None if source is None else ChatTemplate(source, tokenizer)
        built = assemble_engine(model, tokenizer, options)
    finally:
        model.close()
    return BuiltEngine(built.engine, tokenizer, chat_template, model.spec, built.plan, built.runner.name, built.warning)


def assemble_engine(model: ModelFile, tokenizer: Tokenizer | None, options: EngineOptions) -> AssembledEngine:
    """Plans, allocates and loads a model that is open; the caller closes it.

    :param tokenizer: None: requests bring token ids, and outputs bear nothing else
    :raises ModelFileError, ConfigError, PlanError, EngineError: as ``build_engine``
    """
    from ullage.engine.embedded import EmbeddedEngine

    built = assemble_core(model, tokenizer, options)
    return AssembledEngine(EmbeddedEngine(built.core, tokenizer), built.core.runner, built.plan, built.warning)


def assemble_core(
    model: ModelFile, tokenizer: Tokenizer | None, options: EngineOptions, *, service_bytes: int = 0
) -> AssembledCore:
    """As ``assemble_engine``, without the thread.

    :param service_bytes: held by the service, when that is another process; part of the plan's ``runtime``
    """
    from ullage.engine.core import EngineCore
    from ullage.engine.kv_cache import KVCacheConfig
    from ullage.plan.ledger import ALLOCATED_ACCOUNTS, MemoryLedger
    from ullage.plan.machine import settled_bytes

    runner_kind, warning = choose_runner(options.runner)
    plan_request = make_plan_request(options, runner_kind)
    plan = plan_engine(model, plan_request, service_bytes=service_bytes)
    kv_config = KVCacheConfig(plan.num_blocks, plan.demand, plan.slot_bytes, options.enable_prefix_caching)
    ledger = MemoryLedger(plan.planned_bytes())
    runner = _build_runner(model, ledger, plan, plan_request, options.isa)
    ledger.check_complete()
    model.release_pages()
    # What the ledger hands out is resident at once; what else is resident is the runtime's.
    allocated_bytes = sum(ledger.snapshot().accounts[account].allocated_bytes for account in ALLOCATED_ACCOUNTS)
    ledger.record("runtime", max(0, settled_bytes() - allocated_bytes) + service_bytes)
    core = EngineCore(
        runner,
        kv_config,
        scheduler_config(options, plan.max_model_len),
        ledger=ledger,
        vocab_size=model.spec.vocab_size,
        eos_token_ids=() if tokenizer is None else tokenizer.eos_token_ids,
        seed=options.seed,
    )
    return AssembledCore(core, plan, warning)


def scheduler_config(options: EngineOptions, max_model_len: int) -> SchedulerConfig:
    """:raises ConfigError: options that contradict each other"""
    from ullage.engine.scheduler import SchedulerConfig

    return SchedulerConfig(
        max_model_len,
        options.max_num_seqs,
        options.max_num_batched_tokens,
        options.max_waiting_requests,
        options.target_itl_ms,
        max_preemptions=0 if options.admission == "guaranteed" else options.max_preemptions,
        max_waiting_tokens=options.max_waiting_tokens,
        max_waiting_requests_per_tenant=options.max_waiting_requests_per_tenant,
        max_waiting_tokens_per_tenant=options.max_waiting_tokens_per_tenant,
    )


def choose_runner(wanted: Literal["auto", "native", "numpy"]) -> tuple[Literal["native", "numpy"], str | None]:
    """The runner to use, and a warning when that isn't the one a user would expect.

    :raises ConfigError: native was asked for, and its kernels aren't there
    """
    from ullage.kernels.native import native_unavailable_reason

    if wanted == "numpy":
        return "numpy", None
    reason = native_unavailable_reason()
    if reason is None:
        return "native", None
    if wanted == "native":
        raise ConfigError(
            f"the native kernels can't be used: {reason}",
            hint="install again with a C++ compiler, or use --runner numpy",
        )
    return "numpy", f"THE SLOW NUMPY REFERENCE RUNS THIS MODEL: the native kernels can't be used ({reason})"


def make_plan_request(options: EngineOptions, runner_kind: Literal["native", "numpy"]) -> PlanRequest:
    """What the options ask for, with what they leave to the machine.

    :raises ConfigError: an option that the numpy runner can't honour
    """
    from ullage.plan.machine import num_cores
    from ullage.plan.memory import PlanRequest

    if runner_kind == "numpy":
        native_only = {
            "weight_type": options.weight_type != DEFAULT_WEIGHT_TYPE,
            "kv_cache_dtype": options.kv_cache_dtype != DEFAULT_KV_TYPE,
            "isa": options.isa != "auto",
            "threads": options.threads is not None,
        }
        for name in (name for name, given in native_only.items() if given):
            raise ConfigError(
                f"{name} is {getattr(options, name)}, but the numpy runner has only float32 and one way to run",
                hint=f"leave {name} out, or use the native runner",
            )
    return PlanRequest(
        runner=runner_kind,
        weight_type=options.weight_type,
        kv_type=options.kv_cache_dtype,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        kv_memory_bytes=options.kv_memory,
        num_threads=options.threads or num_cores(),
    )


def check_tokenizer(path: Path, tokenizer: Tokenizer, spec: ModelSpec) -> None:
    """:raises ModelFileError: texts could become tokens, or an output end with one, that the model has no row for"""
    num_tokens = tokenizer.vocab_size
    # No text becomes a control token. Gemma 3's folders name one for images, right behind the rows of the text model.
    while num_tokens > spec.vocab_size and tokenizer.is_control(num_tokens - 1):
        num_tokens -= 1
    if num_tokens > spec.vocab_size:
        raise ModelFileError(
            f"{path}: the tokenizer has {num_tokens} tokens, but the model only {spec.vocab_size} rows"
        )
    for token_id in tokenizer.eos_token_ids:
        if token_id >= spec.vocab_size:
            raise ModelFileError(
                f"{path}: end-of-sequence token {token_id} isn't among the model's {spec.vocab_size} tokens"
            )


def plan_engine(model: ModelFile, request: PlanRequest, *, service_bytes: int = 0) -> Plan:
    """The plan for this process on this machine, as they are now.

    :param service_bytes: as of ``assemble_core``
    :raises ConfigError: an option that this model can't honour
    :raises PlanError: more memory than there is
    """
    from ullage.kernels.layout import tensor_types
    from ullage.plan.machine import available_memory_bytes, settled_bytes
    from ullage.plan.memory import make_plan

    model.release_pages()
    return make_plan(
        model.spec,
        tensor_types(model),
        request,
        available_bytes=available_memory_bytes(),
        runtime_bytes=settled_bytes() + service_bytes,
    )


def _build_runner(model: ModelFile, ledger: MemoryLedger, plan: Plan, request: PlanRequest, isa: str) -> ModelRunner:
    if request.runner == "numpy":
        from ullage.engine.numpy_runner import NumpyRunner

        return NumpyRunner(
            model,
            ledger,
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            max_num_batched_tokens=request.max_num_batched_tokens,
            max_num_seqs=request.max_num_seqs,
        )
    from ullage.engine.native_runner import NativeRunner

    return NativeRunner(model, ledger, isa=None if isa == "auto" else isa, **native_arguments(plan, request))


def native_arguments(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """What a ``NativeRunner`` is told of its plan."""
    return {
        "num_blocks": plan.num_blocks,
        "block_size": plan.block_size,
        "max_num_batched_tokens": request.max_num_batched_tokens,
        "max_num_seqs": request.max_num_seqs,
        "weight_type": request.weight_type,
        "kv_type": request.kv_type,
        "num_threads": request.num_threads,
    }
