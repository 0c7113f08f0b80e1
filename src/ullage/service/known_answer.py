"""What the engine must say to a question that is always the same, and where that is kept.

The answer to a greedy question depends on the weights and on what runs them: the runner's name tells instruction set,
weight formats and type of the KV cache. It is learned when a pair of these first starts and pinned in a file, one for
each digest of weights; an engine that later says anything else computes something else::

    <store>/known-answers/<SHA-256 of the weights>.json     {runner: {"question": [...], "answer": [...]}}
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from ullage.base.errors import ModelFileError
from ullage.engine.client import GenerationRequest
from ullage.engine.sampling_params import SamplingParams
from ullage.models.tokenizer import Tokenizer

QUESTION = "The capital of France is"
NUM_ANSWER_TOKENS = 4

logger = logging.getLogger(__name__)

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PinnedAnswer:
    """Where one engine's answer is kept. Calls may block: for files, and until the digest is known.

    :param folder: of all pins; made when it is needed
    :param weights_digest: known when all weights were read; ends with it or with ``ModelFileError``
    """

    folder: Path
    weights_digest: Future[str]
    runner_name: str

    @property
    def can_be_read(self) -> bool:
        """Its place is known."""
        return self.weights_digest.done()

    def read(self, question: TokenIds) -> TokenIds | None:
        """None: nothing is pinned, or nothing that can be made sense of."""
        try:
            pin = json.loads(self._path.read_text("utf-8"))[self.runner_name]
            same_question = tuple(pin["question"]) == question
            return tuple(int(token_id) for token_id in pin["answer"]) if same_question else None
        except (FileNotFoundError, KeyError):
            return None
        except (OSError, ValueError, TypeError, ModelFileError) as error:
            logger.warning("the pinned answer can't be read: %s", error)
            return None

    def write(self, question: TokenIds, answer: TokenIds) -> None:
        """What can't be written is logged: the answer then holds until the server ends."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                pins = json.loads(self._path.read_text("utf-8"))
            except (OSError, ValueError):
                pins = {}
            pins = {**(pins if isinstance(pins, dict) else {})}
            pins[self.runner_name] = {"question": question, "answer": answer}
            with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as file:
                json.dump(pins, file)
            os.replace(file.name, self._path)
        except (OSError, ModelFileError) as error:
            logger.warning("the engine's known answer can't be pinned: %s", error)

    @property
    def _path(self) -> Path:
        return self.folder / f"{self.weights_digest.result()}.json"


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """The question, fit for an engine."""

    request: GenerationRequest
    pinned: PinnedAnswer | None
    """None: what was learned is forgotten when the server ends."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_request_tokens: int, pinned: PinnedAnswer | None) -> KnownQuestion:
        """:param max_request_tokens: the engine's; a short one gets a shorter question"""
        question = tuple(tokenizer.encode(QUESTION))[: max(1, max_request_tokens - NUM_ANSWER_TOKENS)]
        sampling = SamplingParams(
            max_tokens=min(NUM_ANSWER_TOKENS, max_request_tokens - len(question)), temperature=0.0, ignore_eos=True
        )
        return cls(GenerationRequest(question, sampling, streamed=False, is_probe=True), pinned)
