"""What a chat request asks of tools, ready for the prompt, the engine and the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ullage.base.errors import InvalidRequestError
from ullage.engine.constraint import Constraint
from ullage.engine.grammars import GrammarCompiler
from ullage.models.chat_template import ChatTemplate
from ullage.models.tokenizer import Tokenizer
from ullage.protocol.chat import ChatPromptFields
from ullage.protocol.structured_output import AskedConstraint, json_text
from ullage.protocol.tools import Tool
from ullage.service.constraints import checked_constraint
from ullage.service.tool_calls.formats import FORMATS, ToolCallFormat, format_of
from ullage.service.tool_calls.parser import ToolCallParser

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AskedTools:
    """The tools of one request, and the form in which the model calls them."""

    format: ToolCallFormat
    tools: Sequence[Tool]
    template_takes_tools: bool
    constraint: Constraint | None
    """Set where a call is forced."""
    visible_token_ids: tuple[int, ...]
    parallel: bool

    def parser(self) -> ToolCallParser:
        return ToolCallParser(self.format, [tool.function.name for tool in self.tools])

    def for_template(self) -> list[dict[str, object]] | None:
        return [tool.for_template() for tool in self.tools] if self.template_takes_tools else None

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """As they are, or for a template that knows no tools, with the tools and their calls written out."""
        if self.template_takes_tools:
            return list(messages)
        told: Message = {"role": "system", "content": self.format.describe([t.for_template() for t in self.tools])}
        return [told, *(_written_out(message, self.format) for message in messages)]


def asked_tools(
    fields: ChatPromptFields,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
    format_name: str,
) -> AskedTools | None:
    """None: no tool may be called. Compiles the parameters of tools: not on the event loop.

    :param format_name: one of ``FORMATS``, or ``auto``
    :raises InvalidRequestError: the model can't be told of tools, or the parameters of one can't be followed
    """
    if not fields.called_tools:
        return None
    if format_name == "auto" and not template.takes_tools:
        raise InvalidRequestError(
            "this model's chat template has no tools",
            param="tools",
            hint="send tool_choice none, or serve with --tool-format, which describes them in a system message",
        )
    format_ = FORMATS.get(format_name) or format_of(template.source, tokenizer.control_tokens)
    if format_ is None:
        raise InvalidRequestError(
            "how this model writes tool calls isn't known", param="tools", hint="serve with --tool-format"
        )
    for i, tool in enumerate(fields.tools or ()):
        parameters = tool.function.parameters
        if parameters is not None:
            param = f"tools[{i}].function.parameters"
            if parameters.get("type", "object") != "object":
                raise InvalidRequestError(f"{param} must be the schema of an object", param=param)
            if tool.function.strict or tool in fields.forced_tools:
                checked_constraint(compiler, AskedConstraint("json_schema", json_text(parameters), param))
    parallel = fields.parallel_tool_calls is not False
    constraint = None
    if fields.forced_tools:
        schemas = {tool.function.name: tool.function.parameters for tool in fields.forced_tools}
        named = fields.tool_choice != "required"
        grammar = format_.grammar(schemas, tokenizer.control_tokens, parallel=parallel and not named)
        constraint = Constraint("grammar", grammar)
    visible = format_.marker_token_ids(tokenizer.control_tokens)
    return AskedTools(format_, fields.called_tools, template.takes_tools, constraint, visible, parallel)


def _written_out(message: Message, format_: ToolCallFormat) -> Message:
    calls = message.get("tool_calls")
    if message.get("role") == "tool":
        return {"role": "user", "content": f"Result of the call: {_text(message.get('content'))}"}
    if not isinstance(calls, list):
        return message
    written = [
        f'{format_.begin}{format_.opening}{{"name": {json.dumps(call["function"]["name"])}, '
        f'"{format_.arguments_key}": {call["function"]["arguments"]}}}{format_.closing}{format_.end}'
        for call in calls
    ]
    return {"role": "assistant", "content": "\n".join(filter(None, [_text(message.get("content")), *written]))}


def _text(content: object) -> str:
    """Of a message whose content is a list of text parts."""
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else ""
