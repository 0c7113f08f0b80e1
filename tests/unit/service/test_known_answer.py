"""Where the engine's known answer is kept."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.scripted_engine import ByteTokenizer

from ullage.base.errors import ModelFileError
from ullage.service.known_answer import NUM_ANSWER_TOKENS, QUESTION, KnownQuestion, PinnedAnswer


def pinned(folder: Path, digest: str = "aa", runner: str = "native") -> PinnedAnswer:
    known: Future[str] = Future()
    known.set_result(digest)
    return PinnedAnswer(folder / "pins", known, runner)


def test_an_answer_is_found_again_by_weights_runner_and_question(tmp_path: Path) -> None:
    pinned(tmp_path).write((1, 2), (7, 8))
    pinned(tmp_path, runner="numpy").write((1, 2), (9,))
    assert pinned(tmp_path).read((1, 2)) == (7, 8)
    assert pinned(tmp_path, runner="numpy").read((1, 2)) == (9,)
    assert pinned(tmp_path).read((1, 3)) is None
    assert pinned(tmp_path, digest="bb").read((1, 2)) is None


@pytest.mark.parametrize("text", ["", "[]", "null", '{"native": 1}', '{"native": {"question": [1], "answer": "x"}}'])
def test_a_damaged_pin_counts_as_none_and_is_replaced(tmp_path: Path, text: str) -> None:
    pin = pinned(tmp_path)
    pin.write((1,), (2,))
    (tmp_path / "pins" / "aa.json").write_text(text)
    assert pin.read((1,)) is None
    pin.write((1,), (3,))
    assert pin.read((1,)) == (3,)


def test_a_folder_that_cannot_be_written_and_weights_that_cannot_be_read_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pins").write_text("a file")
    unreadable: Future[str] = Future()
    unreadable.set_exception(ModelFileError("gone"))
    pinned(tmp_path).write((1,), (2,))
    PinnedAnswer(tmp_path, unreadable, "native").write((1,), (2,))
    assert PinnedAnswer(tmp_path, unreadable, "native").read((1,)) is None
    assert len(caplog.records) == 3


@pytest.mark.parametrize("room", [2, 5, 6, 1000])
def test_the_question_fits_every_engine(room: int) -> None:
    request = KnownQuestion.of(ByteTokenizer(), room, None).request
    assert request.is_probe
    assert 1 <= request.sampling.max_tokens <= NUM_ANSWER_TOKENS
    assert 1 <= len(request.prompt_token_ids) <= room - request.sampling.max_tokens


def test_an_engine_with_room_is_asked_the_whole_question() -> None:
    assert bytes(KnownQuestion.of(ByteTokenizer(), 100, None).request.prompt_token_ids).decode() == QUESTION
