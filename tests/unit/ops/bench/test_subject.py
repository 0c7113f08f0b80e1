"""The conversation with an engine in another process. The other side is a few lines of Python."""

from __future__ import annotations

import sys

import pytest

from ullage.base.errors import EngineError
from ullage.ops.bench.subject import Answer, ProcessSubject

HELPFUL = """
import json, sys
opening = json.loads(sys.stdin.readline())
print(json.dumps({"version": opening["model"]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request.get("new_tokens") == 13:
        sys.exit("RuntimeError: unlucky")
    if "prompts" in request:
        answer = {"seconds": len(request["prompts"]), "decode_seconds": None}
    else:
        answer = {"version": opening["model"]}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def subject():
    process = ProcessSubject("it", [sys.executable, "-c", HELPFUL], {"model": "m"})
    yield process
    process.close()


def test_a_subject_generates_and_describes_itself(subject):
    assert subject.start_seconds > 0
    assert subject.generate([[1], [2]], 4) == Answer(2, None)
    assert subject.describe() == {"version": "m"}
    assert subject.peak_resident_bytes([[1]], 4) > 0


def test_one_that_ends_is_told_with_its_last_words(subject):
    with pytest.raises(EngineError, match="it ended with exit code 1: RuntimeError: unlucky"):
        subject.generate([[1]], 13)


def test_one_that_does_not_come_up_is_told_too():
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(EngineError, match="no such model"):
        ProcessSubject("it", command, {"model": "m"})
