"""The tool calls of one choice, in the shapes of the chat API."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from ullage.engine.client import GenerationOutput
from ullage.protocol.chat import AssistantMessage, Delta
from ullage.protocol.generation import FinishReason
from ullage.protocol.tools import CalledFunction, ToolCallDelta, ToolCallEntry
from ullage.service.tool_calls.asked import AskedTools
from ullage.service.tool_calls.parser import CallArguments, CallBegins, Content, ToolCallEvent


class ChoiceToolCalls:
    """Reads the outputs of one choice; ``message`` is what all of its ``deltas`` come to."""

    def __init__(self, asked: AskedTools) -> None:
        self._parser = asked.parser()
        self._parallel = asked.parallel
        self._content = ""
        self._calls: list[ToolCallEntry] = []

    def deltas(self, output: GenerationOutput) -> list[Delta]:
        """What one output brings: one delta for each piece of content, each call and each piece of arguments."""
        events = self._parser.push(output.text)
        if output.finish_reason is not None:
            events += self._parser.finish(cut=output.finish_reason == "length")
        return [self._delta(event) for event in self._kept(events)]

    def finish_reason(self, reason: FinishReason) -> FinishReason:
        return "tool_calls" if self._calls and reason == "stop" else reason

    def message(self) -> AssistantMessage:
        message = AssistantMessage(role="assistant", content=self._content, refusal=None)
        if self._calls:
            message["content"] = self._content or None
            message["tool_calls"] = self._calls
        return message

    def _kept(self, events: list[ToolCallEvent]) -> Iterator[ToolCallEvent]:
        for event in events:
            if isinstance(event, Content) or event.index == 0 or self._parallel:
                yield event

    def _delta(self, event: ToolCallEvent) -> Delta:
        match event:
            case Content(text):
                self._content += text
                return Delta(content=text)
            case CallBegins(index, name):
                call_id = f"call_{uuid.uuid4().hex}"
                function = CalledFunction(name=name, arguments="")
                self._calls.append(ToolCallEntry(id=call_id, type="function", function=function))
                first = CalledFunction(name=name, arguments="")
                return Delta(tool_calls=[ToolCallDelta(index=index, id=call_id, type="function", function=first)])
            case CallArguments(index, text):
                self._calls[index]["function"]["arguments"] += text
                return Delta(tool_calls=[ToolCallDelta(index=index, function=CalledFunction(arguments=text))])
