"""Where chat templates run: jinja2's sandbox, with an end to loops and to the size of texts and numbers.

A template is a program that came with a model's files, and may be wrong. What it makes step by step stays bounded; a
filter that writes out one long text many times (``tojson`` of a list of it) is not seen before it is done.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ullage.base.errors import ModelFileError

MAX_LOOP_STEPS = 1_000_000
"""Loop iterations of one rendering, nested ones included: far above what a real conversation takes."""
MAX_RENDERED_CHARS = 16 * 2**20
"""Of what is rendered, and of any text or list on the way there."""
MAX_INTEGER_BITS = 1 << 12

WIDENING = {"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice"}
"""Methods and filters that make more of what they are given, as much as a number says."""

_LONG_NUMBER = re.compile(r"\d{5}")
STEP_COUNTER = "_step_counter"
_JOINED = "_joined"


class _GenerationBlock(Extension):
    """``{% generation %}…{% endgeneration %}`` marks, for training, what the assistant said. Here it says nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class StepCounter:
    """Ends a rendering whose loops take too many steps."""

    def __init__(self) -> None:
        self._num_steps = 0

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._num_steps += 1
            if self._num_steps > MAX_LOOP_STEPS:
                raise jinja2.TemplateRuntimeError(f"more than {MAX_LOOP_STEPS} loop steps")
            yield item


@jinja2.pass_context
def _count_steps(context: jinja2.runtime.Context, items: Iterable[Any]) -> Iterator[Any]:
    """What every loop's items go through. ``parent``: a template can't put a counter of its own in the way."""
    counter: StepCounter = context.parent[STEP_COUNTER]
    return counter.counted(items)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Its operators make no text, list or number past its bound."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "**", int(), int():
                _check_size(left.bit_length() * abs(right), MAX_INTEGER_BITS)
            case "*", int(), int():
                _check_size(left.bit_length() + right.bit_length(), MAX_INTEGER_BITS)
            case "*", str() | list() | tuple(), int():
                _check_size(len(left) * right)
            case "*", int(), str() | list() | tuple():
                _check_size(left * len(right))
            case "+", str() | list() | tuple(), str() | list() | tuple():
                _check_size(len(left) + len(right))
            case "%", str(), _ if _LONG_NUMBER.search(left) or "*" in left:
                raise jinja2.TemplateRuntimeError("a format with that width can't be used")
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if getattr(function, "__name__", None) in WIDENING:
            _check_widths([*args, *kwargs.values()])
        return super().call(context, function, *args, **kwargs)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose numbers are widths."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_widths([*args, *kwargs.values()])
        return function(*args, **kwargs)

    return checked


def _joined(values: Iterable[Any]) -> str:
    """What ``~`` does."""
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _check_widths(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int):
            _check_size(value)


def _check_size(size: int, most: int = MAX_RENDERED_CHARS) -> None:
    if size > most:
        raise jinja2.TemplateRuntimeError("a text, list or number grows too large")


def compile_template(source: str) -> tuple[jinja2.Template, bool]:
    """The template, and whether it looks at ``tools``."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters |= {"tojson": _to_json, STEP_COUNTER: _count_steps, _JOINED: _joined}
    environment.filters |= {name: _bounded(environment.filters[name]) for name in WIDENING & set(environment.filters)}
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        program = environment.parse(source)
        takes_tools = "tools" in meta.find_undeclared_variables(program)
        for loop in list(program.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, STEP_COUNTER, [], [], None, None, lineno=loop.lineno)
        for concat in list(program.find_all(nodes.Concat)):
            texts = nodes.List(concat.nodes, lineno=concat.lineno)
            concat.nodes = [nodes.Filter(texts, _JOINED, [], [], None, None, lineno=concat.lineno)]
        program.set_environment(environment)
        code = environment.compile(program)
        return jinja2.Template.from_code(environment, code, environment.make_globals(None)), takes_tools
    except (jinja2.TemplateError, RecursionError) as error:
        raise ModelFileError(
            f"the model's chat template isn't valid jinja2: {error}",
            hint="get a newer file of the model, or mend the template in it",
        ) from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own, leaves ``<`` and ``'`` as they are: a prompt isn't HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
