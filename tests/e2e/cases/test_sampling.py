"""PAR: values at the edges of their ranges do what they mean; beyond them they are refused."""

from __future__ import annotations

from tests.openai_api import CHAT, accepted, text_of

ASKED = {
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "max_tokens": 40,
    "seed": 7,
}
VOCAB_SIZE = 49152


async def test_edges_of_sampling_mean_what_they_say(api):
    async def text(**fields: object) -> str:
        return text_of(accepted(await api.post(CHAT, **ASKED, **fields)))

    await text(temperature=0)  # the prompt is cached from here on: all begin alike
    greedy = await text(temperature=0)
    free = await text(temperature=1)
    assert greedy != free
    assert await text(temperature=1, top_p=0) == greedy
    assert await text(temperature=1, top_k=1) == greedy
    for everything in ({"top_p": 1}, {"top_k": 0}, {"top_k": -1}, {"top_k": VOCAB_SIZE + 1}):
        assert await text(temperature=1, **everything) == free, everything
    assert await text(temperature=None, top_p=None, top_k=None) == await text() == free
