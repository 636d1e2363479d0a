# SPDX-License-Identifier: Apache-2.0
"""Slices that change too often count later. DVF-5."""

from kepd_devices.manifest.objects import Slice
from kepd_devices.plan.pace import MOST_CHANGES, WITHIN_S, SlicePace
from packages.devices.tests.offered import slice_at


def test_a_pool_changes_ten_times_a_minute_and_others_do_not_notice() -> None:
    """DVF-5: the newest comes next, whatever was between."""
    pace = SlicePace()
    told = []
    for number in range(1, 31):
        found, changes = pace.paced([slice_at(number), slice_at(1, pool="other")], now_s=number)
        told += [(number, one.is_flood) for one in changes]
    assert [(one.spec.pool.name, one.spec.pool.generation) for one in found] == [("here", 11), ("other", 1)]
    assert told == [(12, True)]
    found, _ = pace.paced([slice_at(30), slice_at(2, pool="other")], now_s=31)
    assert [one.spec.pool.generation for one in found] == [11, 2]

    found, changes = pace.paced([slice_at(30)], now_s=2 + WITHIN_S)
    assert ([one.spec.pool.generation for one in found], changes) == ([30], [])
    _, changes = pace.paced([slice_at(30)], now_s=31 + WITHIN_S)
    assert [one.is_flood for one in changes] == [False]


def test_slices_of_one_publication_are_one_change() -> None:
    """DVF-5: they are written one by one, also where each replaces one of before."""
    pace = SlicePace()
    count = 3 * MOST_CHANGES
    old: list[Slice] = []
    for place in range(count):
        old.append(slice_at(1, place, count))
        assert pace.paced(old, now_s=0.0) == (old, [])
    for place in range(count):
        old[place] = slice_at(2, place, count)
        assert pace.paced(old, now_s=1.0) == (old, [])


def test_a_pool_that_comes_and_goes_is_a_flood() -> None:
    """DVF-5."""
    pace = SlicePace()
    told = []
    for number in range(40):
        told += pace.paced([slice_at(1)] if number % 2 else [], now_s=0.0)[1]

    assert [one.is_flood for one in told] == [True]
    found, changes = pace.paced([], now_s=WITHIN_S)
    assert (found, [one.is_flood for one in changes]) == ([], [False])
    assert not pace.is_behind
