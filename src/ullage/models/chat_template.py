"""A model's chat template: messages to token ids.

Templates are jinja2 programs that come with the model's files. They run in jinja2's sandbox, with the extensions and
functions that Hugging Face's ``apply_chat_template`` gives them (see ``ullage.models.template_sandbox``). What a user
typed is data to them: it never becomes a control token (see ``ullage.models.control_text``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jinja2

from ullage.base.errors import InvalidRequestError
from ullage.models.control_text import unescape
from ullage.models.template_sandbox import MAX_RENDERED_CHARS, STEP_COUNTER, StepCounter, compile_template
from ullage.models.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template can raise: jinja2's own errors, and Python's where it does arithmetic on text and the like."""


class ChatTemplate:
    """A compiled template. Rendering keeps no state: several threads may render at once.

    :param source: the jinja2 program; None for a base model, which has none
    :raises InvalidRequestError: there is no template
    :raises ModelFileError: the template isn't valid jinja2
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        if source is None:
            raise InvalidRequestError(
                "this model has no chat template: it's a base model",
                param="messages",
                hint="use /v1/completions, or serve an instruction-tuned model",
            )
        self._tokenizer = tokenizer
        self._special_tokens = {
            name: tokenizer.token_text(token_id)
            for name, token_id in (("bos_token", tokenizer.bos_token_id), ("eos_token", tokenizer.eos_token_id))
            if token_id is not None
        }
        self.source = source
        self._template, self.takes_tools = compile_template(source)
        """Whether the template tells the model of tools."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> list[int]:
        """Token ids of the prompt; BOS is there once where the model wants it.

        :param messages: as in the OpenAI API. ``content`` may be a text, a list of text parts, or None
        :param extra: further variables that the template knows, like ``enable_thinking``
        :raises InvalidRequestError: a malformed message, or the template refuses the conversation
        """
        variables = {"add_generation_prompt": add_generation_prompt, "tools": tools, **extra}
        return self._tokenizer.encode_rendered(self._render(messages, variables))

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The same as text, to look at. Its tokens may differ: control tokens that were typed look like real ones."""
        variables = {"add_generation_prompt": add_generation_prompt, "tools": tools, **extra}
        return unescape(self._render(messages, variables))

    def _render(self, messages: Sequence[Mapping[str, Any]], variables: dict[str, Any]) -> str:
        own = self._special_tokens | {"messages": None, STEP_COUNTER: StepCounter()}
        if reserved := own.keys() & variables.keys():
            raise InvalidRequestError(
                f"{min(reserved)} can't be given to the chat template", param="chat_template_kwargs"
            )
        typed = variables | {"messages": [_plain_message(message) for message in messages]}
        escaped = {name: _map_texts(value, self._tokenizer.escape) for name, value in typed.items()}
        try:
            return _joined(self._template.generate(own | escaped))
        except _TEMPLATE_FAILURES as error:
            raise InvalidRequestError(
                f"the model's chat template can't render these messages: {error}", param="messages"
            ) from None


def _joined(pieces: Iterable[str]) -> str:
    parts = []
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_RENDERED_CHARS:
            raise jinja2.TemplateRuntimeError(f"more than {MAX_RENDERED_CHARS} characters")
        parts.append(piece)
    return "".join(parts)


# -- messages as templates expect them ---------------------------------------------------------------------------------


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The shape that templates are written for: ``content`` is one text, arguments of tool calls are objects."""
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"role {role!r:.40} isn't known", param="messages", hint=f"known are: {', '.join(ROLES)}"
        )
    plain = dict(message)
    plain["role"] = "system" if role == "developer" else role
    plain["content"] = _plain_content(message.get("content"))
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_tool_call(call) for call in message["tool_calls"]]
    return plain


def _plain_content(content: object) -> str:
    match content:
        case None:
            return ""
        case str():
            return content
        case [*parts]:
            return "\n".join(map(_part_text, parts))
    raise InvalidRequestError("content must be a text, a list of text parts, or null", param="messages")


def _part_text(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise InvalidRequestError(
                f"a content part of type {kind!r:.40} can't be read", param="messages", hint="send text parts only"
            )
    raise InvalidRequestError("a content part must look like {type: text, text: …}", param="messages")


def _plain_tool_call(call: Any) -> Any:
    """The API sends arguments as JSON text; templates want to write that JSON themselves."""
    match call:
        case {"function": {"arguments": str(text)} as function}:
            try:
                arguments = json.loads(text)
            except ValueError:
                return call
            if isinstance(arguments, dict):
                return {**call, "function": {**function, "arguments": arguments}}
    return call


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with every text in it changed, the keys of objects too."""
    match value:
        case str():
            return change(value)
        case Mapping():
            return {_map_texts(key, change): _map_texts(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_map_texts(item, change) for item in value]
    return value
