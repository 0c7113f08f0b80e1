"""All settings change together, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ullage.base.errors import ConfigError
from ullage.service.reload import Apply, Reloadable, Reloads


class Follower:
    def __init__(self, *settings: str) -> None:
        self.in_force: list[Any] = []
        self.settings = settings

    def prepare(self, settings: Mapping[str, Any]) -> Apply:
        if "bad" in settings.values():
            raise ConfigError("that is bad")
        values = [settings[name] for name in self.settings]
        return lambda: self.in_force.append(values)

    @property
    def reloadable(self) -> Reloadable:
        return Reloadable("follower", self.settings, self.prepare)


class File:
    """Settings that a test changes."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def read(self) -> dict[str, Any]:
        return dict(self.settings)


def reloads_of(file: File, *followers: Follower) -> Reloads:
    reloads = Reloads({})
    reloads.follow(file.read, file.read())
    for follower in followers:
        reloads.register(follower.reloadable)
    return reloads


async def test_what_has_changed_is_taken_over_and_told() -> None:
    file, follower = File(a=1, b=2), Follower("a", "b")
    reloads = reloads_of(file, follower)
    file.settings["b"] = 3
    assert await reloads.reload() == ["b"]
    assert follower.in_force == [[1, 3]]
    assert await reloads.reload() == []


async def test_one_that_refuses_keeps_all_as_they_were() -> None:
    file, first, second = File(a=1, b=2), Follower("a"), Follower("b")
    reloads = reloads_of(file, first, second)
    file.settings.update(a=5, b="bad")
    with pytest.raises(ConfigError, match="that is bad"):
        await reloads.reload()
    assert first.in_force == second.in_force == []
    file.settings["b"] = 2
    assert await reloads.reload() == ["a"]


async def test_a_setting_that_nobody_follows_cannot_change() -> None:
    file = File(a=1, port=80)
    follower = Follower("a")
    reloads = reloads_of(file, follower)
    file.settings.update(a=2, port=81)
    with pytest.raises(ConfigError, match="port can't change while the server runs"):
        await reloads.reload()
    assert follower.in_force == []


async def test_files_that_settings_name_are_read_anew_though_no_setting_changed() -> None:
    follower = Follower("a")
    assert await reloads_of(File(a=1), follower).reload() == []
    assert follower.in_force == [[1]]
