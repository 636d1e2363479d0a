# SPDX-License-Identifier: Apache-2.0
"""The endpoints of a port, over changes of its slices."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.services.service import Backend, PortKey, ServiceKey
from agent.services.objects import fold, merged
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.reading_slice import ReadSlice
from tests.services.making import make_slice

WEB = ServiceKey("shop", "web")
PORTS = [{"name": f"p{one}", "protocol": "TCP", "port": 8000 + one} for one in range(2)]
KEYS = [PortKey(one["name"], "TCP") for one in PORTS]
ENDPOINTS = st.lists(
    st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=6, unique_by=lambda one: one[0]
)
CHANGES = st.lists(st.tuples(st.sampled_from("abc"), ENDPOINTS | st.none()), min_size=1, max_size=12)


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """As if few endpoints were many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "LEAST_FOLLOWED", 1)
        patch.setattr(merged, "MOST_FOLLOWED", 6)
        yield


def one_slice(name: str, endpoints: list[tuple[int, bool, bool]]) -> ReadSlice:
    found = [
        {"ip": f"10.1.0.{number}", "conditions": {"ready": is_ready, "terminating": is_ending}}
        for number, is_ready, is_ending in endpoints
    ]
    return make_slice(found, name=name, ports=PORTS)


@given(CHANGES)
def test_what_follows_changes_is_what_is_made_anew(
    changes: list[tuple[str, list[tuple[int, bool, bool]] | None]],
) -> None:
    """FS-17: also where two slices have the same endpoint."""
    followed, there = ServiceIndex(), {}
    for name, endpoints in changes:
        if endpoints is None:
            followed.drop_slice("shop", name)
            there.pop(name, None)
        else:
            followed.put_slice(one_slice(name, endpoints))
            there[name] = endpoints
        fresh = ServiceIndex()
        for other, had in there.items():
            fresh.put_slice(one_slice(other, had))
        for key in KEYS:
            assert followed.backends(WEB, "IPv4", key) == fresh.backends(WEB, "IPv4", key)


@pytest.mark.parametrize("key", KEYS)
def test_endpoints_that_stay_are_the_same_objects(key: PortKey) -> None:
    """FS-17: so that comparing two lists costs little."""
    one = ServiceIndex()
    one.put_slice(one_slice("a", [(number, True, False) for number in range(1, 6)]))
    one.put_slice(one_slice("b", [(number, True, False) for number in range(6, 11)]))
    before = backends_of(one, key)
    one.put_slice(one_slice("a", [(number, True, False) for number in (1, 2, 4, 5, 11)]))
    after = backends_of(one, key)

    assert set(before) - set(after) == {"10.1.0.3"}
    assert set(after) - set(before) == {"10.1.0.11"}
    assert all(after[address] is before[address] for address in set(after) & set(before))


def backends_of(one: ServiceIndex, key: PortKey) -> dict[str, Backend]:
    return {backend.address: backend for backend in one.backends(WEB, "IPv4", key)}


def test_nothing_is_kept_of_a_service_that_is_gone() -> None:
    one = ServiceIndex()
    one.put_slice(one_slice("a", [(1, True, False)]))
    one.backends(WEB, "IPv4", KEYS[0])
    one.drop_slice("shop", "a")

    assert not one._merged
