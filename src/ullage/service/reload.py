"""Settings that change while the server runs: all of them together, or none.

Whoever follows settings registers what it makes of them, in two halves: ``prepare`` reads and checks and may fail, and
what it returns puts the result in force and may not. A setting that nobody follows can't change without a restart, and
a reload that would change it is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ullage.base.errors import ConfigError, UllageError

logger = logging.getLogger(__name__)

Settings = Mapping[str, Any]
"""All settings of the server by name."""
Apply = Callable[[], None]
"""Called on the event loop; quick, and never fails."""


@dataclass(frozen=True, slots=True)
class Reloadable:
    """Something that follows settings, or the files that they name."""

    name: str
    settings: Collection[str]
    """Those that it takes over when they change."""
    prepare: Callable[[Settings], Apply]
    """Called on a thread; raises ``ConfigError`` and changes nothing when they can't be honoured."""


class Reloads:
    """Belongs to the event loop.

    :param settings: those in force
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._read: Callable[[], Settings] = lambda: settings
        self._reloadables: list[Reloadable] = []
        self._one_at_a_time = asyncio.Lock()

    def register(self, reloadable: Reloadable) -> None:
        self._reloadables.append(reloadable)

    def follow(self, read: Callable[[], Settings], settings: Settings) -> None:
        """From now on settings come from ``read``, which may block and raise ``ConfigError``.

        :param settings: what it gave last
        """
        self._read, self._settings = read, settings

    async def reload(self) -> list[str]:
        """The names of the settings that have changed; files are read anew whether or not any has.

        :raises ConfigError: something is wrong; everything stays as it was
        """
        async with self._one_at_a_time:
            try:
                settings, applies = await asyncio.to_thread(self._prepare)
            except UllageError as error:
                logger.error("the reload was refused, the old settings stay: %s", error)
                raise
            changed = sorted(name for name in settings if settings[name] != self._settings[name])
            for apply in applies:
                apply()
            self._settings = settings
            logger.warning("reloaded: %s", ", ".join(changed) or "no setting has changed")
            return changed

    def _prepare(self) -> tuple[Settings, list[Apply]]:
        settings = self._read()
        followed = {name for reloadable in self._reloadables for name in reloadable.settings}
        fixed = [name for name, value in settings.items() if value != self._settings[name] and name not in followed]
        if fixed:
            raise ConfigError(f"{', '.join(sorted(fixed))} can't change while the server runs", hint="restart it")
        return settings, [reloadable.prepare(settings) for reloadable in self._reloadables]
