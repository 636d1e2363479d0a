# SPDX-License-Identifier: Apache-2.0
"""Stable hashing as far as it is arithmetic (SVN-40, SVN-43); packets are in node/test_maglev.py."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.services.routes.maglev import MOST_ENDPOINTS, SIZES, maglev_table, slot_count

NAMES = st.sets(st.integers(1, 250), min_size=1, max_size=60).map(
    lambda numbers: tuple(f"10.1.0.{number}:8080" for number in sorted(numbers))
)
# Of the slots that were not its own, in parts, when one of so many goes; and the fullest endpoint in parts of the mean.
MOVED = {(3, 251): 0.020, (10, 251): 0.080, (13, 1021): 0.023, (50, 1021): 0.054}
FULLEST = {3: 1.01, 10: 1.05, 50: 1.04}


def names(count: int) -> tuple[str, ...]:
    return tuple(f"10.1.0.{number}:8080" for number in range(1, count + 1))


def owners(table: tuple[int, ...], endpoints: tuple[str, ...]) -> list[str]:
    return [endpoints[one] for one in table]


@given(NAMES, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_everybody_has_slots(endpoints: tuple[str, ...], luck: object) -> None:
    shuffled = list(endpoints)
    luck.shuffle(shuffled)  # type: ignore[attr-defined]
    table = owners(maglev_table(endpoints), endpoints)

    assert table == owners(maglev_table(tuple(shuffled)), tuple(shuffled))
    assert len(table) == slot_count(len(endpoints))
    assert set(table) == set(endpoints)


@pytest.mark.parametrize(("count", "size"), MOVED)
def test_a_removal_moves_few_slots_of_others(count: int, size: int) -> None:
    """Whoever it is that goes: no more than twice the figures that are known."""
    before = names(count)
    table = owners(maglev_table(before), before)
    assert len(table) == size
    for gone in before:
        after = tuple(one for one in before if one != gone)
        if slot_count(len(after)) != size:
            continue
        moved = [one for one, other in zip(table, owners(maglev_table(after), after), strict=True) if one != other]
        others = [one for one in moved if one != gone]

        assert len(others) / size <= 2 * MOVED[count, size]


@pytest.mark.parametrize("count", FULLEST)
def test_endpoints_are_nearly_alike(count: int) -> None:
    counts = Counter(table := maglev_table(names(count)))

    assert max(counts.values()) * len(counts) / len(table) <= FULLEST[count]


def test_a_weight_is_a_number_of_turns() -> None:
    counts = Counter(maglev_table(names(3), (3, 1, 0)))

    assert 2 not in counts
    assert 2.8 < counts[0] / counts[1] < 3.2


def test_tables_have_three_sizes_and_an_end() -> None:
    assert [slot_count(n) for n in (0, 1, 12, 13, 50, 51, 1000, 1001)] == [0, 251, 251, 1021, 1021, 4093, 4093, 0]
    assert SIZES[-1][0] == MOST_ENDPOINTS
    assert maglev_table(()) == ()
