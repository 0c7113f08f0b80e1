"""Compares answers of ``/v1/completions`` from batches of different shapes, which round differently."""

from __future__ import annotations

from typing import Any

CLOSE_CALL_NATS = 0.15
"""Further apart than this the best two tokens can't change places."""
COMPARED = {"logprobs": 1, "return_token_ids": True}
"""What a request must ask for to be compared."""


def choice_of(events: list[Any]) -> dict[str, Any]:
    """What the choices of a stream come to."""
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    return {
        "text": "".join(choice["text"] for choice in choices),
        "token_ids": [i for choice in choices for i in choice.get("token_ids", [])],
        "top": [top for part in logprobs for top in part["top_logprobs"]],
        "logprobs": [value for part in logprobs for value in part["token_logprobs"]],
    }


def assert_same_answer(events: list[Any], alone: dict[str, Any]) -> None:
    """To the token, up to one where the best two were nearly equal."""
    streamed, choice = choice_of(events), alone["choices"][0]
    assert len(streamed["token_ids"]) == alone["usage"]["completion_tokens"]
    for i, (ours, theirs) in enumerate(zip(streamed["token_ids"], choice["token_ids"], strict=True)):
        if ours != theirs:
            scores = [*streamed["top"][i].values(), *choice["logprobs"]["top_logprobs"][i].values()]
            assert max(scores) - min(scores) <= CLOSE_CALL_NATS, f"token {i}"
            return
    assert streamed["text"] == choice["text"]
