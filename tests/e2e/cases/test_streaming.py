"""STR: what is streamed is what is answered, and nothing that isn't."""

from __future__ import annotations

import pytest
from tests.http_server import events_of
from tests.openai_api import CHAT, COMPLETIONS, accepted, end_of, pieces_of, text_of

PARROTS = "🦜🌋🧭 🦜🌋🧭 🦜🌋🧭 🦜🌋🧭"
"""Goes on with characters of three tokens each; with a space at the end, as it was reported, the model says words."""
EELS = "鳗鱼饭，鳗鱼饭，鳗鱼饭，"
COUNTING = "one two three four five six seven eight nine ten one two three four"
LONGEST = 24


@pytest.mark.parametrize(("prompt", "cuts"), [(PARROTS, True), (EELS, True), (f"{PARROTS} ", False)])
async def test_streamed_and_plain_texts_are_the_same_wherever_characters_are_cut(api, prompt, cuts):
    longer = text_of(await api.complete(prompt, temperature=0, max_tokens=LONGEST + 8))
    num_cut = 0
    for num_tokens in range(1, LONGEST + 1, 1 if cuts else 6):
        fields = {"prompt": prompt, "temperature": 0, "max_tokens": num_tokens}
        plain = text_of(await api.complete(**fields))
        streamed = (await api.post(COMPLETIONS, stream=True, **fields)).content
        assert "".join(pieces_of(events_of(streamed.decode("utf-8")))) == plain
        for line in streamed.split(b"\n"):
            line.decode("utf-8")
        # The documented tail: half a character at the very end is one U+FFFD, and nowhere else is one.
        whole = plain.removesuffix("\ufffd")
        num_cut += whole != plain
        assert "\ufffd" not in whole
        assert longer.startswith(whole)
    assert (num_cut > 0) == cuts


@pytest.mark.parametrize(
    ("prompt", "stop"),
    [
        (COUNTING, ["ix sev"]),
        (COUNTING, "ix sev"),
        (COUNTING, "x"),
        (COUNTING, ["six seven eight nine"]),
        (COUNTING, ["seven eig", "seven", "seven eight nine", "ten"]),
        (PARROTS, ["🧭"]),
        (PARROTS, ["🧭🧭🧭"]),
    ],
    ids=str,
)
async def test_a_stop_text_is_never_shown_and_cuts_both_ways_alike(api, prompt, stop):
    fields = {"prompt": prompt, "temperature": 0, "max_tokens": 40}
    free = text_of(await api.complete(**fields))
    texts = [stop] if isinstance(stop, str) else stop
    expected = free[: min(free.index(text) for text in texts if text in free)]
    plain = await api.complete(**fields, stop=stop)
    events = await api.stream(COMPLETIONS, **fields, stop=stop)
    assert text_of(plain) == "".join(pieces_of(events)) == expected
    assert plain["choices"][0]["finish_reason"] == end_of(events) == "stop"


async def test_four_stop_texts_are_the_most_and_none_is_as_good_as_absent(api):
    fields = {"prompt": COUNTING, "temperature": 0, "max_tokens": 8}
    error = await api.refused(COMPLETIONS, **fields, stop=["a", "b", "c", "d", "e"])
    assert error["param"] == "stop"
    assert text_of(await api.complete(**fields, stop=[])) == text_of(await api.complete(**fields))


MESSAGES = [{"role": "user", "content": "Name three colours."}]
ASKED = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12}
NO_TEXT = {**ASKED, "logit_bias": {"2": 100}}
"""<|im_end|> at once."""


@pytest.mark.parametrize(
    "fields", [ASKED, NO_TEXT, {**ASKED, "n": 2, "temperature": 1, "seed": 1}], ids=["1", "0", "2"]
)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}], ids=str)
async def test_every_chunk_has_its_shape_and_usage_comes_once_and_only_when_asked_for(api, fields, options):
    asked = fields if options is None else {**fields, "stream_options": options}
    *chunks, done = await api.stream(CHAT, **asked)
    assert done == "[DONE]"
    plain = accepted(await api.post(CHAT, **fields))
    if options == {"include_usage": True}:
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        *chunks, last = chunks
        assert last["choices"] == []
        counted = {name: value for name, value in last["usage"].items() if name.endswith("_tokens")}
        assert counted == {name: value for name, value in plain["usage"].items() if name.endswith("_tokens")}
        assert last.keys() - {"usage"} == chunks[0].keys() - {"usage"}
    else:
        assert all("usage" not in chunk for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    for index in range(fields.get("n", 1)):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert all({"delta", "index", "finish_reason"} <= choice.keys() for choice in choices)
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
        assert choices[-1]["finish_reason"] == plain["choices"][index]["finish_reason"]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == text_of(plain, index)


async def test_a_prompt_counts_once_however_many_choices_it_has(api):
    one, two = [(await api.chat(MESSAGES, max_tokens=4, n=n))["usage"] for n in (1, 2)]
    assert one["prompt_tokens"] == two["prompt_tokens"]
    assert two["completion_tokens"] > one["completion_tokens"]


async def test_an_answer_without_tokens_of_text_is_streamed_whole(api):
    events = await api.stream(CHAT, **NO_TEXT)
    assert "".join(pieces_of(events)) == ""
    assert end_of(events) == "stop"
