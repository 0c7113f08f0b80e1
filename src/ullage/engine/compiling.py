"""Constrained requests whose grammars are being compiled, on a thread beside the engine's, so that steps go on."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ullage.base.errors import RequestError
from ullage.engine.grammars import Matcher
from ullage.engine.output import TextEngine

if TYPE_CHECKING:
    from ullage.engine.engine_loop import Submit

POLL_SECONDS = 0.005

Compiled = tuple["Submit", Matcher | RequestError | None]


class CompilingRequests:
    """Belongs to the engine's thread."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ullage-grammar")
        self._waiting: dict[int, Submit] = {}
        self._compiled: queue.SimpleQueue[Compiled] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, submit: Submit) -> None:
        self._waiting[submit.key] = submit
        self._thread.submit(self._compile, submit)

    def leave(self, key: int) -> Submit | None:
        """Forgets a request; None when it isn't here."""
        return self._waiting.pop(key, None)

    def leave_all(self) -> list[Submit]:
        left = list(self._waiting.values())
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)
        return left

    def take(self, *, wait: bool) -> list[Compiled]:
        """Those that are done, each with its matcher or why there is none. With ``wait`` sleeps a moment for one."""
        taken: list[Compiled] = []
        try:
            while True:
                compiled = self._compiled.get(timeout=POLL_SECONDS if wait and not taken else 0)
                if self._waiting.pop(compiled[0].key, None) is not None:
                    taken.append(compiled)
        except queue.Empty:
            return taken

    def _compile(self, submit: Submit) -> None:
        try:
            self._compiled.put((submit, self._engine.matcher_for(submit.request)))
        except RequestError as error:
            self._compiled.put((submit, error))
