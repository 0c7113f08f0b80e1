"""Bytes of a recurrent state on one rank; the splitting rules are the same in vLLM and SGLang."""

from __future__ import annotations

from ullage.base.errors import ConfigError
from ullage.plan.architecture import RecurrentState


def convolution_values(state: RecurrentState, ranks: int, *, extra_rows: int = 0) -> int:
    """Values of the convolution's memory on one rank; speculative decoding keeps ``extra_rows`` more rows.

    Groups of Mamba 2 that can't be cut are repeated so that each rank has those that its heads need.

    :raises ConfigError: channels that can't be shared out evenly
    """
    rows = state.conv_kernel - 1
    if not rows:
        return 0
    groups = state.num_groups
    if state.form == "mamba2" and groups % ranks:
        groups = ranks
    channels = state.num_heads * state.head_dim + 2 * groups * state.state_dim
    _check_even(channels, ranks, "channels of the convolution")
    return channels // ranks * (rows + extra_rows)


def matrix_values(state: RecurrentState, ranks: int) -> int:
    """Values of the state matrices on one rank.

    :raises ConfigError: heads that can't be shared out evenly
    """
    _check_even(state.num_heads, ranks, "heads of the state")
    return state.num_heads // ranks * state.head_dim * state.state_dim


def _check_even(count: int, ranks: int, what: str) -> None:
    if count % ranks:
        raise ConfigError(f"tensor_parallel_size {ranks} doesn't divide the {count} {what}")
