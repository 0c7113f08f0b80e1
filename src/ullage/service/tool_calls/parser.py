"""Finds tool calls in a text that comes in pieces. How it is cut makes no difference to what is found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ullage.service.tool_calls.call_scanner import CallScanner
from ullage.service.tool_calls.formats import ToolCallFormat

_WHITE_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Content:
    """Text beside the calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments."""

    index: int
    text: str


ToolCallEvent = Content | CallBegins | CallArguments


class ToolCallParser:
    """Of one choice. A call is told as soon as its name is known and its arguments begin; what looks like a call and
    turns out to be none is content, to the letter.

    :param function_names: where a call needs no mark, only these make one
    """

    def __init__(self, format_: ToolCallFormat, function_names: Collection[str]) -> None:
        self._format = format_
        self._function_names = function_names
        self._state: Literal["start", "text", "call", "after"] = "start" if format_.begins_answer else "text"
        self._held = ""
        """Text whose meaning isn't decided: part of a mark, white space before one, a call that hasn't begun."""
        self._scanner = CallScanner()
        self._opened = False
        """The opening bracket of this call list has come."""
        self._begun = False
        self._num_calls = 0
        self._events: list[ToolCallEvent] = []

    @property
    def num_calls(self) -> int:
        return self._num_calls

    def push(self, text: str) -> list[ToolCallEvent]:
        for char in text:
            self._push(char)
        return self._take()

    def finish(self, *, cut: bool) -> list[ToolCallEvent]:
        """The end of the text.

        :param cut: it ended by length: an unfinished call or mark is no content
        """
        body = self._held.strip(_WHITE_SPACE)
        unfinished = self._state == "call" or (self._state == "text" and len(body) > 1)
        told_or_cut = self._begun or self._state == "after" or (cut and unfinished)
        if not told_or_cut and (body or self._num_calls == 0):
            self._add_content(self._held)
        self._held = ""
        return self._take()

    def _take(self) -> list[ToolCallEvent]:
        taken, self._events = self._events, []
        return taken

    def _push(self, char: str) -> None:
        match self._state:
            case "start":
                self._push_start(char)
            case "text":
                self._push_text(char)
            case "call":
                self._push_call(char)
            case "after":
                self._push_after(char)

    def _push_start(self, char: str) -> None:
        self._held += char
        body = self._held.lstrip(_WHITE_SPACE)
        if body == self._format.begin:
            self._enter_call()
        elif body == "{":
            self._enter_call()
            self._scanner.push(char)
        elif not self._format.begin.startswith(body):
            self._give_back()

    def _push_text(self, char: str) -> None:
        """Holds what may be the mark, and the white space before it."""
        if self._format.begins_answer:
            self._add_content(char)
            return
        self._held += char
        begin = self._format.begin
        if self._held.endswith(begin):
            num_before = len(self._held[: -len(begin)].rstrip(_WHITE_SPACE))
            self._add_content(self._held[:num_before])
            self._held = self._held[num_before:]
            self._enter_call()
            return
        kept = next(n for n in range(min(len(begin) - 1, len(self._held)), -1, -1) if self._held.endswith(begin[:n]))
        num_free = len(self._held[: len(self._held) - kept].rstrip(_WHITE_SPACE))
        self._add_content(self._held[:num_free])
        self._held = self._held[num_free:]

    def _enter_call(self) -> None:
        self._state = "call"
        self._opened = not self._format.opening
        self._next_call()

    def _next_call(self) -> None:
        self._state, self._scanner, self._begun = "call", CallScanner(), False

    def _push_call(self, char: str) -> None:
        if not self._begun:
            self._held += char
        if not self._opened and char not in _WHITE_SPACE:
            self._opened = True
            if char == self._format.opening:
                return
        self._scanner.push(char)
        unknown = self._format.begins_answer and self._scanner.name not in (None, *self._function_names)
        if self._scanner.state == "failed" or unknown:
            self._call_failed()
            return
        self._pass_on()
        if self._scanner.state == "done":
            self._state, self._held, self._begun = "after", "", False

    def _pass_on(self) -> None:
        if self._scanner.begun and not self._begun:
            assert self._scanner.name is not None
            self._begun, self._held = True, ""
            self._events.append(CallBegins(self._num_calls, self._scanner.name))
            self._num_calls += 1
        if arguments := self._scanner.take_arguments():
            self._events.append(CallArguments(self._num_calls - 1, arguments))

    def _call_failed(self) -> None:
        """Of a call that was told nothing can be taken back: the rest of it goes, up to the next mark."""
        if self._begun:
            self._state, self._held, self._begun = "after", "", False
        else:
            self._give_back()

    def _push_after(self, char: str) -> None:
        """Behind a call: a separator, the closing bracket, or text again; where calls have an end mark, nothing before
        that is text.
        """
        self._held += char
        if self._format.end:
            if self._held.endswith(self._format.end):
                self._held, self._state = "", "text"
            return
        body = self._held.lstrip(_WHITE_SPACE)
        if not body:
            return
        if body == self._format.separator:
            self._held = ""
            self._next_call()
        elif body == self._format.closing:
            self._held, self._state = "", "text"
        else:
            self._give_back()

    def _give_back(self) -> None:
        """What was held is text; of a text, it may hold the mark of the next call."""
        held, self._held, self._state, self._begun = self._held, "", "text", False
        begin = self._format.begin
        if not self._format.begins_answer and held.lstrip(_WHITE_SPACE).startswith(begin):
            before, _, held = held.partition(begin)
            self._add_content(before + begin)  # not to be taken for a call again
        for char in held:
            self._push(char)

    def _add_content(self, text: str) -> None:
        if not text:
            return
        if self._events and isinstance(self._events[-1], Content):
            self._events[-1] = Content(self._events[-1].text + text)
        else:
            self._events.append(Content(text))
