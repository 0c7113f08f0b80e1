"""What docs/gateway.md tells people to write can be honoured."""

from __future__ import annotations

import re
from pathlib import Path

from ullage.base.config import settings_of
from ullage.cli.settings import GATEWAY
from ullage.gateway.config import GatewayConfig
from ullage.gateway.replica_file import read_replicas

PAGE = (Path(__file__).parents[3] / "docs/gateway.md").read_text("utf-8")


def test_the_file_of_replicas_on_the_page_is_read(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "replicas.toml"
    path.write_text(example)
    assert [(replica.name, replica.weight) for replica in read_replicas(path)] == [("one", 95), ("canary", 5)]


def test_the_settings_and_figures_on_the_page_are_those_of_the_code():
    known = settings_of(GATEWAY["Gateway"])
    named = {name.replace("-", "_") for name in re.findall(r"--((?:sticky)-[a-z-]+)", PAGE)}
    named |= set(re.findall(r"`((?:health_failures|max_|idle_|first_|answer_|slow_|sticky_)\w*)`", PAGE))
    assert len(named) >= 8
    assert named <= set(known)
    config = GatewayConfig()
    assert "8 s at most" in PAGE
    assert config.health_failures * (config.health_interval_seconds + config.health_timeout_seconds) == 8
    assert "3 in a row, or half of those of the last 30 s | ejected for 10 s" in PAGE
    assert (config.ejection_failures, config.ejection_error_rate) == (3, 0.5)
    assert (config.error_window_seconds, config.ejection_seconds) == (30.0, 10.0)
    assert config.answer_timeout_seconds == 600
