from __future__ import annotations

import copy
import io

import pytest
from rich.console import Console

from ullage.cli.top_view import Reading, frame, tokens_per_second

MIB = 1 << 20
BODY = {
    "accounts": {
        "weights": {"planned_bytes": 92 * MIB, "allocated_bytes": 92 * MIB},
        "kv_pool": {"planned_bytes": 64 * MIB, "allocated_bytes": 64 * MIB},
        "headroom": {"planned_bytes": 100 * MIB, "allocated_bytes": 0},
    },
    "kv_pool": {"reserved_bytes": 20 * MIB, "used_bytes": 16 * MIB, "cached_bytes": 8 * MIB},
    "blocks": {"total": 64, "size": 32, "free": 44, "promised": 3},
    "requests": {"running": 2, "waiting": 1, "preemptions": 4},
    "tokens": {"prompt": 900, "generated": 1500, "prefix_hits": 64},
    "engine": {"state": "ready", "num_restarts": 0, "num_steps": 9},
    "measured": {"resident_bytes": 170 * MIB},
}


def shown(reading: Reading, before: Reading | None = None, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(frame("http://h:1", reading, before, width))
    return console.file.getvalue()


def later(generated: int, **engine: object) -> Reading:
    body = copy.deepcopy(BODY)
    body["tokens"]["generated"] = generated
    body["engine"] |= engine
    return Reading(12.0, body, "")


NOW = Reading(10.0, BODY, "")


def test_a_frame_says_state_work_accounts_and_blocks():
    text = shown(later(1700), NOW)
    assert "http://h:1 ready" in text
    assert "2 running, 1 waiting   100 tokens/s" in text
    assert "92.0 MiB" in text
    assert "64 blocks of 32 tokens: 16 used, 7 kept, 8 cached, 33 free" in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(map(len, shown(NOW, width=width).splitlines())) <= width


def test_the_bar_of_the_pool_is_as_long_as_all_blocks_together():
    bar = shown(NOW).rstrip().splitlines()[-1]
    assert len(bar) == 78
    assert bar.count("░") == pytest.approx(78 * 33 / 64, abs=1)


def test_the_speed_is_not_known_at_first_nor_over_a_restart():
    assert tokens_per_second(NOW, None) is None
    assert tokens_per_second(later(100), NOW) is None
    assert tokens_per_second(later(1500), NOW) == 0
    assert "- tokens/s" in shown(NOW)


def test_a_server_that_is_gone_shows_what_was_seen_last():
    text = shown(Reading(10.0, BODY, "Connection refused"), NOW)
    assert "doesn't answer (Connection refused)" in text
    assert "- tokens/s" in text


def test_restarts_of_the_engine_are_told():
    assert "restarting  restarted once" in shown(later(1, state="restarting", num_restarts=1))
    assert "restarted 3 times" in shown(later(1, num_restarts=3))


def test_an_engine_that_has_said_nothing_yet_has_a_frame():
    body = copy.deepcopy(BODY)
    body["blocks"] = {"total": 0, "size": 0, "free": 0, "promised": 0}
    assert "0 blocks" in shown(Reading(1.0, body, ""))
