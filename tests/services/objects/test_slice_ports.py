# SPDX-License-Identifier: Apache-2.0
"""Pairs of endpoint and port, over changes of their slice."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.services.service import PortKey, SliceFacts
from agent.services.objects.merged import SlicePorts, kept
from tests.services.making import make_slice

PORTS = [{"name": f"p{one}", "protocol": "TCP", "port": 8000 + one} for one in range(4)]
KEYS = [PortKey(one["name"], "TCP") for one in PORTS]
ENDPOINTS = st.lists(
    st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6, unique_by=lambda one: one[0]
)  # fmt: skip


def facts_of(endpoints: list[tuple[int, bool]]) -> SliceFacts:
    found = make_slice(
        [{"ip": f"10.1.0.{number}", "conditions": {"ready": is_ready}} for number, is_ready in endpoints], ports=PORTS
    ).facts
    assert found is not None
    return found


@given(ENDPOINTS, ENDPOINTS, st.sets(st.sampled_from(KEYS)))
def test_a_changed_slice_has_the_pairs_that_a_new_one_has(
    before: list[tuple[int, bool]], after: list[tuple[int, bool]], asked: set[PortKey]
) -> None:
    """FS-17: and those of endpoints that stayed are the same objects."""
    had, has = facts_of(before), facts_of(after)
    old, new = SlicePorts(had), SlicePorts(replace(has, endpoints=kept(had.endpoints, has.endpoints)))
    earlier = {key: old.backends(key) for key in asked}
    new.take_over(old)
    stayed = set(before) & set(after)

    assert {key: new.backends(key) for key in KEYS} == {key: SlicePorts(facts_of(after)).backends(key) for key in KEYS}
    for key in asked - {KEYS[0]}:
        same = {id(one) for found in earlier[key] for one in found} & {id(one) for one in new.backends(key)[0]}
        assert len(same) == len(stayed)


def test_pairs_that_nobody_asks_for_any_more_go() -> None:
    """SY-12: a Service that names another port each time keeps no more than the pairs of its last two slices."""
    slices = [SlicePorts(facts_of([(number, True)])) for number in range(1, 5)]
    for number, (before, after) in enumerate(pairwise(slices)):
        before.backends(KEYS[number])
        after.take_over(before)

    assert slices[-1].made is None
