# SPDX-License-Identifier: Apache-2.0
"""SVN-25: what was reported comes back whole, or not at all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.services.service import ServiceFacts, SliceFacts
from agent.services.objects.node_state import NodeSight
from agent.services.objects.snapshot import AT_ONCE, LONGEST_AGE_S, ServiceSnapshot, SnapshotHead, pieces, read_snapshot
from tests.services.making import make_service, make_slice

READ_BY = ("0.1.0", "n1")
MANY = 2 * AT_ONCE + 1


def services(count: int) -> list[ServiceFacts]:
    found: list[ServiceFacts] = []
    for number in range(count):
        spec: dict[str, Any] = {"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.0/24"]}
        read = make_service(f"s{number}", ip=f"10.96.{number >> 8}.{number & 255}", externalIPs=["203.0.113.7"], **spec)
        assert read.facts is not None
        found.append(read.facts)
    return found


def slices(count: int) -> list[SliceFacts]:
    found: list[SliceFacts] = []
    for number in range(count):
        ends = [{"ip": "10.1.0.1", "nodeName": "a", "hints": {"forZones": [{"name": "z"}]}}, "10.1.0.2"]
        read = make_slice(ends, service=f"s{number}", name=f"s{number}-x")
        assert read.facts is not None
        found.append(read.facts)
    return found


def written(some: list[ServiceFacts], others: list[SliceFacts], **changed: Any) -> bytes:
    sight = NodeSight(is_known=True, labels={"zone": "a"}, taints=("x",))
    given_ = {"services": len(some), "slices": len(others), **changed}
    head = SnapshotHead(read_by=READ_BY, sight=sight, service_ranges=("10.96.0.0/16",), **given_)
    return b"".join(pieces(head, some, others))


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, MANY])
def test_it_comes_back_as_it_was(count: int) -> None:
    some, others = services(count), slices(min(count, 3))
    found = read_snapshot(written(some, others), READ_BY, 10.0)

    assert isinstance(found, ServiceSnapshot)
    assert (list(found.services), list(found.slices)) == (some, others)
    assert found.head.sight.labels == {"zone": "a"}


@pytest.mark.parametrize("age_s", [LONGEST_AGE_S + 1, -1.0, float("inf"), float("nan")])
def test_an_old_one_and_one_of_the_future_are_not_read(age_s: float) -> None:
    assert read_snapshot(written(services(1), []), READ_BY, age_s) == "old"


def test_other_settings_and_another_version_are_no_match() -> None:
    content = written(services(1), [])

    assert read_snapshot(content, ("0.2.0", "n1"), 0.0) == "other settings"
    assert read_snapshot(written([], [], format=2), READ_BY, 0.0) == "other settings"


@given(st.integers(0, 400), st.binary(max_size=3))
def test_one_that_is_damaged_is_refused_whole(at: int, instead: bytes) -> None:
    whole = written(services(2), slices(2))
    content = whole[:at] + instead
    found = read_snapshot(content, READ_BY, 0.0)

    assert content == whole or found == "damaged"


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(content: bytes) -> None:
    assert read_snapshot(content, READ_BY, 0.0) == "damaged"


def test_counts_have_to_agree() -> None:
    assert read_snapshot(written(services(2), [], services=3), READ_BY, 0.0) == "damaged"
