# SPDX-License-Identifier: Apache-2.0
"""SVN-25: what was reported comes back whole, or not at all."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.services.service import Address, Backend, PortKey, ServiceFacts, ServiceKey, SliceFacts
from agent.services.objects.node_state import NodeSight
from agent.services.objects.snapshot import (
    AT_ONCE,
    FORMAT,
    LONGEST_AGE_S,
    ChangedService,
    Expected,
    ServiceSnapshot,
    SnapshotHead,
    framed,
    pieces,
    read_snapshot,
)
from tests.services.making import make_service, make_slice

READ_BY = ("0.1.0", "n1")
EXPECTED = Expected(read_by=READ_BY)
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
    sight = NodeSight(is_known=True, labels={"zone": "a", f"{'d' * 253}/{'n' * 63}": "x"}, taints=("x",))
    given_ = {"services": len(some), "slices": len(others), **changed}
    head = SnapshotHead(read_by=READ_BY, sight=sight, service_ranges=("10.96.0.0/16",), **given_)
    return b"".join(pieces(head, some, others))


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, MANY])
def test_it_comes_back_as_it_was(count: int) -> None:
    some, others = services(count), slices(min(count, 3))
    found = read_snapshot(written(some, others), b"", EXPECTED, 10.0)

    assert isinstance(found, ServiceSnapshot)
    assert (list(found.services), list(found.slices)) == (some, others)
    assert found.head.sight.labels["zone"] == "a"


@pytest.mark.parametrize("age_s", [LONGEST_AGE_S + 1, -1.0, float("inf"), float("nan")])
def test_an_old_one_and_one_of_the_future_are_not_read(age_s: float) -> None:
    why = "from the future" if age_s < 0 else "old"
    assert read_snapshot(written(services(1), []), b"", EXPECTED, age_s) == why


def test_a_clock_may_be_behind_as_far_as_is_expected() -> None:
    """SVN-128: after a boot without a battery, and without a server of time."""
    content, patient = written(services(1), []), replace(EXPECTED, most_ahead_s=60.0)

    assert isinstance(read_snapshot(content, b"", patient, -60.0), ServiceSnapshot)
    assert read_snapshot(content, b"", patient, -61.0) == "from the future"


def test_other_settings_and_another_version_are_no_match() -> None:
    content = written(services(1), [])

    assert read_snapshot(content, b"", Expected(read_by=("0.2.0", "n1")), 0.0) == "other settings"
    assert read_snapshot(written([], [], format=FORMAT + 1), b"", EXPECTED, 0.0) == "other settings"


@given(st.integers(0, 400), st.binary(max_size=3))
def test_one_that_is_damaged_is_refused_whole(at: int, instead: bytes) -> None:
    whole = written(services(2), slices(2))
    content = whole[:at] + instead
    found = read_snapshot(content, b"", EXPECTED, 0.0)

    assert content == whole or found == "damaged"


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(content: bytes) -> None:
    assert read_snapshot(content, b"", EXPECTED, 0.0) == "damaged"


def test_counts_have_to_agree() -> None:
    assert read_snapshot(written(services(2), [], services=3), b"", EXPECTED, 0.0) == "damaged"


def with_changes(mark: str, *rounds: Sequence[ChangedService]) -> bytes:
    return b"".join([framed(mark), *(framed(tuple(one)) for one in rounds)])


def test_changes_are_taken_in_their_order_and_none_that_is_gone_comes_back() -> None:
    """SVN-127."""
    some, others = services(3), slices(3)
    gone = ChangedService(some[0].key, None, ())
    bare = ChangedService(some[1].key, some[1], ())
    again = ChangedService(some[1].key, some[1], (others[1],))
    found = read_snapshot(written(some, others, mark="m"), with_changes("m", [gone, bare], [again]), EXPECTED, 0.0)

    assert isinstance(found, ServiceSnapshot)
    assert ({one.key for one in found.services}, set(found.slices)) == (
        {some[1].key, some[2].key},
        {others[1], others[2]},
    )


def test_changes_of_another_snapshot_count_for_nothing() -> None:
    """SVN-127: the crash came between the two files, and they are in it."""
    some = services(2)
    changes = with_changes("other", [ChangedService(some[0].key, None, ())])
    found = read_snapshot(written(some, [], mark="m"), changes, EXPECTED, 0.0)

    assert isinstance(found, ServiceSnapshot)
    assert list(found.services) == some


@given(st.data())
def test_a_crash_at_any_byte_leaves_what_was_told_up_to_some_round(data: st.DataObject) -> None:
    """SVN-127: at least all rounds that were whole on the disk."""
    some = services(3)
    rounds = [[ChangedService(one.key, None, ())] for one in some]
    whole = with_changes("m", *rounds)
    cut = data.draw(st.integers(0, len(whole)))
    tail = data.draw(st.sampled_from([b"", bytes(3), bytes(20)]))
    found = read_snapshot(written(some, [], mark="m"), whole[:cut] + (tail if cut else b""), EXPECTED, 0.0)
    if found == "damaged":
        # Zeros in the place of a piece's end are not what was written.
        assert tail
        return
    assert isinstance(found, ServiceSnapshot)
    ends = [len(with_changes("m", *rounds[:count])) for count in range(4)]
    least = max((count for count, end in enumerate(ends) if end <= cut), default=0)

    assert len(found.services) == 3 - least


@given(st.integers(0, 300), st.integers(1, 255))
def test_changes_that_are_not_what_was_written_refuse_all(at: int, flip: int) -> None:
    """SVN-128: whether in the middle or at the end."""
    some = services(3)
    whole = with_changes("m", *[[ChangedService(one.key, None, ())] for one in some])
    at %= len(whole)
    content = whole[:at] + bytes((whole[at] ^ flip,)) + whole[at + 1 :]
    found = read_snapshot(written(some, [], mark="m"), content, EXPECTED, 0.0)
    if isinstance(found, ServiceSnapshot):
        # A length that reaches beyond the end looks torn.
        assert len(found.services) >= 0
    else:
        assert found == "damaged"


IMPOSSIBLE: list[Callable[[ServiceFacts, SliceFacts], tuple[ServiceFacts, SliceFacts]]] = [
    lambda one, other: (replace(one, key=ServiceKey("shop", "\x1b[31m")), other),
    lambda one, other: (replace(one, ports=(replace(one.ports[0], port=70_000),)), other),
    lambda one, other: (replace(one, v4=replace(one.v4, cluster_ip=Address("IPv4", "10.0.0.1", b"xy"))), other),
    lambda one, other: (replace(one, v4=replace(one.v4, cluster_ip=Address("IPv6", "10.0.0.1", bytes(16)))), other),
    lambda one, other: (one, replace(other, name="n" * 300)),
    lambda one, other: (one, replace(other, ports=((PortKey("http", "TCP"), 0),))),
    lambda one, other: (one, replace(other, endpoints=(Backend("10.1.0.1:80", b"short"),))),
    lambda one, other: (one, replace(other, endpoints=(Backend("\n", bytes(8)),))),
    lambda one, other: (one, replace(other, endpoints=(Backend("127.0.0.1:22", bytes((127, 0, 0, 1, 0, 22, 0, 0))),))),
    lambda one, other: (one, replace(other, endpoints=(Backend("x", bytes((169, 254, 169, 254, 0, 80, 0, 0))),))),
    lambda one, other: (replace(one, options=replace(one.options, topology_keys=("\x1b[2J",))), other),
]


@pytest.mark.parametrize("spoil", IMPOSSIBLE)
def test_values_that_kepd_never_wrote_are_refused(
    spoil: Callable[[ServiceFacts, SliceFacts], tuple[ServiceFacts, SliceFacts]],
) -> None:
    """SVN-128: neither kernel nor terminal sees them."""
    one, other = spoil(services(1)[0], slices(1)[0])

    assert read_snapshot(written([one], [other]), b"", EXPECTED, 0.0) == "damaged"


@pytest.mark.parametrize(
    "changed",
    [
        {"service_ranges": ("\x1b[2J",)},
        {"sight": NodeSight(labels={"topology.kubernetes.io/zone": "\x1b[2J"})},
        {"sight": NodeSight(addresses=(Address("IPv4", "192.0.2.1", b"xy"),))},
    ],
)
def test_a_node_that_kepd_never_saw_is_refused(changed: dict[str, Any]) -> None:
    """SVN-128."""
    given_ = {"sight": NodeSight(), "service_ranges": (), **changed}
    content = framed(SnapshotHead(read_by=READ_BY, services=0, slices=0, **given_))

    assert read_snapshot(content, b"", EXPECTED, 0.0) == "damaged"


def test_too_large_and_another_cluster_are_refused_by_name() -> None:
    """SVN-128."""
    content = written(services(1), [], cluster="one")

    assert read_snapshot(content, b"", Expected(read_by=READ_BY, cluster="two"), 0.0) == "another cluster"
    small = Expected(read_by=READ_BY, cluster="one", most_bytes=len(content) - 1)
    assert read_snapshot(content, b"", small, 0.0) == "too large"
    assert read_snapshot(b"", bytes(len(content)), small, 0.0) == "too large"
