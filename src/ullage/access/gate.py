"""Who may come in: a key for every address but liveness, known address or not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from ullage.access.keys import REFUSAL, ApiKey, KeyStore
from ullage.base.errors import AuthenticationError, PermissionDeniedError

OPEN_PATH = "/health/live"
OBSERVED_PATHS = ("/metrics", "/v1/ledger", "/health", "/health/ready")
BEARER = re.compile(rb"bearer +([\x21-\x7e]{1,256})", re.IGNORECASE)


class Gate:
    """Checks keys on a thread of its own: the file may be locked, and the event loop must not wait for it."""

    def __init__(self, store: KeyStore) -> None:
        self._reader = store.reader()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="api-keys")

    async def enter(
        self,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        on_known: Callable[[ApiKey], None] = lambda _: None,
    ) -> ApiKey | None:
        """The key that opens this address; None where none is needed.

        :param headers: lower-case names, as ASGI gives them
        :param on_known: told a valid key, also when it doesn't open this address
        :raises AuthenticationError: no valid key
        :raises PermissionDeniedError: a valid key without this route group
        :raises AccessStoreError: the keys can't be read: nobody comes in
        """
        if path == OPEN_PATH:
            return None
        given = [value for name, value in headers if name == b"authorization"]
        match = BEARER.fullmatch(given[0]) if len(given) == 1 else None
        text = match[1].decode("ascii") if match else ""
        try:
            key = await asyncio.get_running_loop().run_in_executor(self._thread, self._reader.check, text)
        except AuthenticationError:
            raise AuthenticationError(REFUSAL) from None  # the frames of the first one hold the key
        on_known(key)
        if (group := route_group(path)) not in key.route_groups:
            raise PermissionDeniedError(f"this API key may not use the route group {group}")
        return key

    def close(self) -> None:
        self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)


def route_group(path: str) -> str:
    if path.lower().lstrip("/").startswith("admin"):
        return "admin"
    return "observe" if path in OBSERVED_PATHS else "inference"
