"""From measured points to a result."""

from __future__ import annotations

import pytest
from tests.unit.ops.bench.known_subject import KnownSubject

from ullage.base.errors import ConfigError
from ullage.engine.build import EngineOptions
from ullage.ops.bench.measure import Measured
from ullage.ops.bench.roofline import Machine, ModelCosts, limit_of
from ullage.ops.bench.run import OURS, BenchRequest, check_options, check_pool, describe_point
from ullage.ops.bench.scenario import Point, load_scenario

COSTS = ModelCosts(100, 50, 600, 2.0, 5, (None,))
MACHINE = Machine(1000.0, 10_000.0)


def point(**fields):
    return Point("p", "p", **{"kind": "decode", "num_sequences": 2, "prompt_tokens": 60, "new_tokens": 4, **fields},
                 repeats=3, kv_memory=None)  # fmt: skip


def test_a_point_is_described_with_its_share_of_the_roofline():
    limit, bound = limit_of(point(), COSTS, MACHINE, 512)
    measured = {
        OURS: Measured([limit / 4, limit / 2, limit]),
        "peer": Measured(error="peer: /home/me/models/m.gguf: no"),
    }
    described = describe_point(point(), measured, COSTS, MACHINE, 512)
    assert described["roofline"] == {"limit": limit, "bound": bound, "share": pytest.approx(0.5)}
    assert described["results"][OURS]["samples"] == [limit / 4, limit / 2, limit]
    assert described["results"]["peer"] == {"median": None, "samples": [], "error": "peer: m.gguf: no"}
    assert described["unit"] == "tokens/s"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (EngineOptions(max_num_seqs=32), "--max-num-seqs 64"),
        (EngineOptions(max_num_seqs=64, max_model_len=1000), "--max-model-len 1501"),
    ],
)
def test_settings_that_do_not_let_a_point_run_are_refused(tmp_path, options, hint):
    request = BenchRequest(tmp_path, False, load_scenario("standard"), options, "", None, None)
    with pytest.raises(ConfigError, match=hint):
        check_options(request)


def test_a_pool_that_holds_too_few_tokens_is_refused():
    description = KnownSubject("it").describe() | {"capacity_tokens": 127}
    with pytest.raises(ConfigError, match="--kv-memory 1024"):  # 2 sequences of 64 tokens, 8 bytes each
        check_pool((point(),), description)
    check_pool((point(),), description | {"capacity_tokens": 128})
