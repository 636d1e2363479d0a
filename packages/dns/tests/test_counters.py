# SPDX-License-Identifier: Apache-2.0
"""What the process counts."""

from hypothesis import given
from hypothesis import strategies as st

from kepd_dns.run.counters import BUCKETS_S, Histogram


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.00005, 0.0003, 0.0004, 9.0]), st.integers(1, 64))))
def test_times_that_are_equal_in_a_row_are_each_counted(times: list[tuple[float, int]]) -> None:
    """DNS-102: each once, at whatever moment somebody looks."""
    found = Histogram()
    for seconds, count in times:
        found.note(seconds, count)
        found.settle()
    at_once = Histogram()
    for seconds, count in times:
        at_once.note(seconds, count)
    at_once.settle()
    at_once.settle()

    assert found.counts == at_once.counts
    assert sum(found.counts) == sum(count for _, count in times)
    assert found.counts[-1] == sum(count for seconds, count in times if seconds > BUCKETS_S[-1])
    assert abs(found.sum_s - sum(seconds * count for seconds, count in times)) < 1e-6
