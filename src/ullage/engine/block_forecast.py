"""How many blocks requests will hold together at most, if each becomes as long as expected.

They don't all need their most at one time: when one ends, those that had less to go ended before it. So with requests
sorted by what they have to go, the longest first, the most is found at one of the ends::

    when the i-th ends, each of the first i has grown by to_go(i): sum over j <= i of blocks(tokens(j) + to_go(i))

Source: the future required memory of the Past-Future scheduler (Gong et al. 2025, arXiv:2507.10150).
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.plan.block_demand import BlockDemand


def most_blocks(demand: BlockDemand, requests: Sequence[tuple[int, int]]) -> int:
    """
    :param requests: (tokens to go, tokens now) of each
    :return: blocks; one that several of them share counts for each
    """
    ordered = sorted(requests, reverse=True)
    return max(
        (
            sum(demand.num_blocks(num_tokens + num_more) for _, num_tokens in ordered[: i + 1])
            for i, (num_more, _) in enumerate(ordered)
        ),
        default=0,
    )
