# SPDX-License-Identifier: Apache-2.0
"""Whose clients are forgotten where many share a map."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.services.nft_table import AffineClient
from agent.services.nftables.crowding import SHORT_LIFE_MS, is_full, plan_trims

SIZE = 1000
HOUR_MS = 3_600_000


def clients(*held: int) -> list[AffineClient]:
    """So many of each port, the first ones the newest."""
    return [
        AffineClient(at.to_bytes(4, "big") + bytes([0, 0, 0, port]), b"", HOUR_MS - at)
        for port, count in enumerate(held)
        for at in range(count)
    ]


def by_port(some: list[AffineClient]) -> dict[int, int]:
    return dict(Counter(one.key[-1] for one in some))


@pytest.mark.parametrize(
    ("held", "ports", "chosen"),
    [
        ((500,), 2, {}),
        ((501, 10), 2, {0: 1}),
        ((501,), 1, {}),
        ((501, 10), 5, {0: 1}),
        ((501, 10), 10, {0: 101}),
        ((400, 110, 90), 40, {0: 300, 1: 10}),
        ((400, 110, 90), 4000, {0: 300, 1: 10}),
        ((60,) * 12, 12, {}),
    ],
)  # fmt: skip
def test_a_port_has_a_tenth_or_four_equal_shares_and_half_at_most(
    held: tuple[int, ...], ports: int, chosen: dict[int, int]
) -> None:
    """SVN-101."""
    _, cut = plan_trims(clients(*held), sum(held), SIZE, ports, deletes=False)

    assert by_port(cut) == chosen


@pytest.mark.parametrize(
    ("held", "chosen"),
    [((901,), {0: 151}), ((600, 350), {0: 200}), ((500, 450), {0: 125, 1: 75}), ((310,) * 3, {0: 60, 1: 60, 2: 60})],
)  # fmt: skip
def test_the_largest_ports_are_levelled_when_there_is_no_time(held: tuple[int, ...], chosen: dict[int, int]) -> None:
    """FS-14, SVN-101: until a quarter is free."""
    crowds, gone = plan_trims(clients(*held), sum(held), SIZE, 40, deletes=True)

    assert by_port(gone) == chosen
    assert [one.number[-1] for one in crowds] == sorted(chosen)
    assert all(one.life_ms > HOUR_MS - chosen[one.key[-1]] for one in gone)


def test_a_sample_stands_for_all_and_its_older_half_is_spared() -> None:
    """SVN-101: 80 of 100 looked at are of a port that so has 760 of 950 clients, 200 too many."""
    (crowd,), gone = plan_trims(clients(80, 20), 950, SIZE, 2, deletes=True)

    assert (crowd.held, crowd.level) == (760, 560)
    assert by_port(gone) == {0: 40}


@given(st.lists(st.integers(0, 400), min_size=1, max_size=12), st.integers(2, 100), st.booleans())
def test_what_was_trimmed_is_not_trimmed_again(held: list[int], ports: int, deletes: bool) -> None:
    """SVN-101: and nobody below the level loses a client."""
    before = clients(*held)
    count = min(len(before), SIZE)
    before = before[:count]
    crowds, chosen = plan_trims(before, count, SIZE, ports, deletes=deletes)
    gone = set(chosen)
    cut = [one for one in before if one not in gone] if deletes else [
        one._replace(life_ms=SHORT_LIFE_MS) if one in gone else one for one in before
    ]  # fmt: skip
    _, again = plan_trims(cut, len(cut), SIZE, ports, deletes=deletes)
    had = by_port(before)

    assert again == []
    assert all(had[one.number[-1]] - by_port(chosen)[one.number[-1]] >= one.level - 1 for one in crowds)
    assert not is_full(len(cut), SIZE) or not deletes
