"""The clients that people use, straight and behind an nginx with its default settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from tests.nginx import nginx

QUESTION = "Name three colours."


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


def book_room(city: str, nights: int) -> str:
    """Book a hotel room."""
    raise AssertionError("the model only asks for it")


@pytest.fixture(scope="module", params=["straight", "behind nginx"])
def address(request, server, tmp_path_factory) -> Iterator[str]:
    if request.param == "straight":
        yield f"{server.url}/v1"
    else:
        with nginx(tmp_path_factory.mktemp("nginx"), server.url) as url:
            yield f"{url}/v1"


@pytest.fixture
def langchain(address) -> ChatOpenAI:
    return ChatOpenAI(model="smollm2", base_url=address, api_key="unused", temperature=0, max_tokens=60)


def test_the_official_client_streams_what_it_answers(address):
    asked: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 30,
    }
    with openai.OpenAI(base_url=address, api_key="unused") as client:
        client.chat.completions.create(**asked)  # the prompt is cached from here on
        plain = client.chat.completions.create(**asked).choices[0].message.content
        with client.chat.completions.create(**asked, stream=True) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == plain
    assert len(pieces) > 10


def test_langchain_streams_what_it_answers(langchain):
    langchain.invoke(QUESTION)
    pieces = [chunk.content for chunk in langchain.stream(QUESTION)]
    assert "".join(pieces) == langchain.invoke(QUESTION).content
    assert len(pieces) > 10


def test_langchain_gets_an_object(langchain):
    person = langchain.with_structured_output(Person).invoke("Give me a person: a name and an age.")
    assert isinstance(person, Person)


def test_langchain_gets_a_call_plain_and_streamed(langchain):
    model = langchain.bind_tools([book_room], tool_choice="book_room")
    (plain,) = model.invoke("3 nights in Paris").tool_calls
    whole = None
    for chunk in model.stream("3 nights in Paris"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    (streamed,) = whole.tool_calls
    assert (plain["name"], plain["args"]) == (streamed["name"], streamed["args"])
    assert plain["name"] == "book_room"
    assert plain["args"].keys() == {"city", "nights"}
