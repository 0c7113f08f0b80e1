"""Tools: what a chat request says of them, and the calls in an answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

MAX_TOOLS = 128

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object. None: no arguments are described, and any are allowed."""
    strict: bool | None = None
    """True: the parameters must be such that they could be followed. Calls that ``tool_choice`` forces follow them in
    any case; others are as the model writes them."""


class Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, object]:
        """As a chat template takes it; absent keys are absent."""
        return self.model_dump(exclude_none=True)


class FunctionChoice(BaseModel):
    name: FunctionName


class NamedToolChoice(BaseModel):
    type: Literal["function"]
    function: FunctionChoice


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class CalledFunction(TypedDict):
    name: NotRequired[str]
    """In a stream only on the first piece of a call."""
    arguments: str
    """JSON, as the model wrote it; in a stream the next piece of it."""


class ToolCallEntry(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolCallDelta(TypedDict):
    """The first piece of a call has everything, the others have ``index`` and arguments only."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunction
