from __future__ import annotations

import pytest

from ullage.base.errors import ConfigError
from ullage.plan.sharing import heads_per_rank, stage_bounds


@pytest.mark.parametrize(("heads", "ranks", "kept"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (2, 4, 1), (1, 8, 1)])
def test_heads_are_cut_evenly_or_repeated(heads, ranks, kept):
    assert heads_per_rank(heads, ranks) == kept


@pytest.mark.parametrize(("heads", "ranks"), [(8, 3), (10, 4), (3, 2)])
def test_heads_that_cannot_be_shared_are_refused(heads, ranks):
    with pytest.raises(ConfigError, match="tensor_parallel_size"):
        heads_per_rank(heads, ranks)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"), [(8, 2, [4, 4]), (7, 2, [4, 3]), (10, 4, [2, 3, 3, 2]), (3, 3, [1, 1, 1])]
)
def test_stages_share_layers_with_the_last_one_never_larger(layers, stages, sizes):
    bounds = stage_bounds(layers, stages)
    assert [last - first for first, last in bounds] == sizes
    assert [first for first, _ in bounds] == [0, *(last for _, last in bounds[:-1])]
    assert bounds[-1][1] == layers


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ConfigError, match="pipeline_parallel_size"):
        stage_bounds(2, 3)
