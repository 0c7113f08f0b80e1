"""The engine's side of the conversation."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from ullage.ops.bench import peer_driver

DRIVER = f"""
import sys
sys.path.insert(0, {os.path.dirname(peer_driver.__file__)!r})
from peer_driver import answer_lines

def load(opening):
    print("a library says hello")
    calls = []
    def prepare(prompts, new_tokens):
        def generate():
            calls.append((prompts, new_tokens))
            return 0.5 if len(prompts) == 1 else None
        return generate
    return prepare, lambda: {{"model": opening["model"], "calls": calls}}

answer_lines(load)
"""


def test_answers_are_all_that_standard_output_has():
    lines = [
        {"model": "m", "first_prompt": [7]},
        {"prompts": [[1, 2]], "new_tokens": 3},
        {"prompts": [[1], [2]], "new_tokens": 3},
        {},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n"
    done = subprocess.run([sys.executable, "-c", DRIVER], input=text, capture_output=True, text=True, check=True)
    ready, one, two, described = map(json.loads, done.stdout.splitlines())
    assert ready == {"model": "m", "calls": [[[[7]], 1]]}
    assert one["decode_seconds"] == 0.5
    assert two["decode_seconds"] is None
    assert one["seconds"] >= 0
    assert described["calls"][1:] == [[[[1, 2]], 3], [[[1], [2]], 3]]
    assert "a library says hello" in done.stderr
