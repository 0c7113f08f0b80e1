from __future__ import annotations

from dataclasses import replace

import pytest
from tests.random_model import small_spec

from ullage.models.layer_groups import layer_groups
from ullage.models.spec import LayerSpec, RopeSpec


def groups_of(*windows: int | None) -> list[tuple[int | None, tuple[int, ...]]]:
    layers = tuple(LayerSpec(RopeSpec(10_000.0), window) for window in windows)
    return [(group.window, group.layers) for group in layer_groups(replace(small_spec(), layers=layers))]


@pytest.mark.parametrize("window", [None, 512])
def test_layers_that_are_all_alike_are_one_group(window):
    assert groups_of(*[window] * 30) == [(window, tuple(range(30)))]


def test_layers_of_one_window_are_cut_in_order_into_groups_of_equal_size():
    assert groups_of(*[8, 8, None] * 2) == [(8, (0, 1)), (8, (3, 4)), (None, (2, 5))]


def test_gemma_has_groups_of_three():
    groups = groups_of(*[512, 512, 512, 512, 512, None] * 3)
    assert [(window, len(layers)) for window, layers in groups] == [(512, 3)] * 5 + [(None, 3)]
    assert groups[0][1] == (0, 1, 2)
    assert groups[-1][1] == (5, 11, 17)


def test_counts_without_a_common_divisor_make_groups_of_one():
    assert groups_of(8, 8, 8, None, None) == [(8, (0,)), (8, (1,)), (8, (2,)), (None, (3,)), (None, (4,))]


def test_layers_with_another_rope_share_a_group():
    layers = tuple(LayerSpec(RopeSpec(theta)) for theta in (1e4, 1e6))
    assert [group.layers for group in layer_groups(replace(small_spec(), layers=layers))] == [(0, 1)]
