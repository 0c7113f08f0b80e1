"""The forms in which models write tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ullage.engine.grammars import inline_schema

FormatName = Literal["hermes", "llama3_json", "mistral"]


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """Calls are JSON objects between marks::

    text  begin opening {call} separator {call} closing end  text
    """

    name: FormatName
    begin: str
    """Comes before calls. Optional where ``begins_answer``."""
    end: str
    arguments_key: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    begins_answer: bool = False
    """Calls are the whole answer, and a ``{`` at its beginning may be one."""

    def marker_token_ids(self, control_tokens: Mapping[str, int]) -> tuple[int, ...]:
        """The marks that are control tokens of the model: they must be seen in the text."""
        return tuple(control_tokens[mark] for mark in (self.begin, self.end) if mark in control_tokens)

    def grammar(
        self, functions: Mapping[str, Mapping[str, Any] | None], control_tokens: Mapping[str, int], *, parallel: bool
    ) -> str:
        """A Lark grammar of one or more calls, and nothing else.

        :param functions: the JSON schema of each function's arguments, by name
        """

        def mark(text: str) -> str:
            return f"<[{control_tokens[text]}]>" if text in control_tokens else json.dumps(text)

        begin = "" if self.begins_answer else mark(self.begin) + (' "\\n"' if self.end else "")
        end = '"\\n" ' + mark(self.end) if self.end else ""
        if self.separator:  # several calls between the marks
            more = f"({json.dumps(self.separator + ' ')} call)*" if parallel else ""
            calls = f"{_literal(self.opening)} call {more} {_literal(self.closing)}"
            start = f"{begin} {calls} {end}"
        else:
            start = f"{begin} call {end}"
            start += f' ("\\n" {start})*' if parallel else ""
        schemas = [self._call_schema(name, parameters) for name, parameters in functions.items()]
        rules = [f"call_{i}: {inline_schema(schema)}" for i, schema in enumerate(schemas)]
        alternatives = " | ".join(f"call_{i}" for i in range(len(rules)))
        return "\n".join([f"start: {start}", f"call: {alternatives}", *rules])

    def _call_schema(self, name: str, parameters: Mapping[str, Any] | None) -> dict[str, object]:
        arguments = dict(parameters or {"type": "object"})
        names = ("$defs", "definitions")
        definitions: dict[str, object] = {name: arguments.pop(name) for name in names if name in arguments}
        return {
            "type": "object",
            "properties": {"name": {"const": name}, self.arguments_key: arguments},
            "required": ["name", self.arguments_key],
            "additionalProperties": False,
            **definitions,  # references of the arguments begin at the root
        }

    def describe(self, tools: Sequence[Mapping[str, object]]) -> str:
        """What a model is told whose chat template says nothing of tools."""
        example = json.dumps({"name": "<function>", self.arguments_key: {}})
        lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
        written = f"{self.begin}{self.opening}{example}{self.closing}{self.end}"
        return "\n".join(["You can call these functions:", *lines, f"To call one, write {written}"])


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


HERMES = ToolCallFormat("hermes", "<tool_call>", "</tool_call>", "arguments")
LLAMA3_JSON = ToolCallFormat("llama3_json", "<|python_tag|>", "", "parameters", separator=";", begins_answer=True)
MISTRAL = ToolCallFormat("mistral", "[TOOL_CALLS]", "", "arguments", opening="[", separator=",", closing="]")

FORMATS: Mapping[str, ToolCallFormat] = {format_.name: format_ for format_ in (HERMES, LLAMA3_JSON, MISTRAL)}


def format_of(template_source: str, control_tokens: Mapping[str, int]) -> ToolCallFormat | None:
    """The form that a model writes, by what its chat template and its control tokens say; None: not one known."""
    if HERMES.begin in template_source:
        return HERMES
    if MISTRAL.begin in template_source or MISTRAL.begin in control_tokens:
        return MISTRAL
    if LLAMA3_JSON.begin in template_source or LLAMA3_JSON.begin in control_tokens:
        return LLAMA3_JSON
    return None
