# SPDX-License-Identifier: Apache-2.0
"""Objects of unusual size: what they cost, and who gets room where all together are too much."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.model.services.service import PortKey, ServiceKey
from agent.services.objects import bounds as room
from agent.services.objects.bounds import EndpointBudget, ServiceRoom
from agent.services.objects.fold import ServiceIndex
from agent.services.routes.desired import Desired
from tests.services.iptables.iptables_cases import facts_for
from tests.services.making import make_service, make_slice

MOST_MIB = 150
HONEST = {f"honest{number}" for number in range(1, 51)}
ROOT = Path(__file__).parents[2]


def crowd(case: str, program: str = "crowd") -> Any:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.services.objects.{program}", case],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["slice", "slice without service"])
def test_ports_of_a_slice_that_no_service_has_cost_nothing(case: str) -> None:
    """FS-20: 3 000 ports and 1 000 endpoints in 160 KiB."""
    seen = crowd(case)

    assert seen["peak_mib"] < MOST_MIB
    assert set(seen["programmed"]) == HONEST | ({"large"} if case == "slice" else set())
    assert seen["told"] == {}


def test_a_service_of_three_million_endpoints_is_refused_with_the_reason() -> None:
    """FS-20."""
    seen = crowd("service")

    assert seen["peak_mib"] < MOST_MIB
    assert set(seen["programmed"]) == HONEST
    assert seen["told"]["large"][0] == "ServiceTooLarge"
    assert "3024000 elements, which are endpoints and ways in for each port and" in seen["told"]["large"][1]


def test_large_services_of_one_namespace_leave_room_for_others() -> None:
    """FS-20, SY-12: seven of 100 000 endpoints each; the oldest fit, and of several the first by name."""
    seen = crowd("services")

    assert seen["peak_mib"] < 2 * MOST_MIB
    assert set(seen["programmed"]) == HONEST | {"large0", "large1", "large2"}
    assert set(seen["told"]) == {"", *(f"large{number}" for number in range(3, 7))}
    assert seen["told"][""][0] == "ServiceRoomShort"


@pytest.mark.parametrize("case", ["external IPs", "ports and addresses", "slices of no service", "small services"])
def test_no_set_of_objects_of_a_tenant_takes_the_memory_or_the_place_of_others(case: str) -> None:
    """SY-12: 24 Services of 12 000 external IPs, 60 of 3 000 ports by 1 000 addresses, 3 000 slices of 1 000 endpoints
    that no Service has, 50 000 Services. A pod of kepd has 384 MiB, and the kernel's elements are in them."""
    seen = crowd(case)

    assert seen["peak_mib"] < 250
    assert set(seen["programmed"]) >= HONEST
    assert seen["told"]


def key(number: int, namespace: str = "shop") -> ServiceKey:
    return ServiceKey(namespace, f"s{number}")


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the share of a namespace."""
    monkeypatch.setattr(room, "SHARE", 0.5)


class Node:
    """Room of 100 elements, so that a namespace has 50 at most."""

    def __init__(self) -> None:
        self.room = EndpointBudget()

    def put(self, number: int, elements: int, namespace: str = "shop", created: str = "") -> frozenset[ServiceKey]:
        made = make_service(f"s{number}", namespace=namespace, meta={"creationTimestamp": created or str(number)})
        assert made.facts is not None
        self.room.put(made.facts, elements)
        return self.room.settle(100)

    def out(self, *numbers: int, namespace: str = "shop") -> list[int]:
        return [one for one in numbers if self.room.refusal(key(one, namespace)) is not None]


@pytest.mark.usefixtures("half")
def test_what_is_programmed_stays_and_the_newest_is_refused() -> None:
    """SY-12: whatever its size, and however many small ones come."""
    node = Node()
    node.put(1, 40)
    for number in range(2, 30):
        node.put(number, 10, "tenant")

    assert node.out(1) == []
    assert node.out(*range(2, 30), namespace="tenant") == [*range(7, 30)]
    assert "tenant 280 of at most 50" in str(node.room.refusal(key(7, "tenant")))
    assert node.put(40, 10, "other") == frozenset()
    assert node.put(41, 1, "other") == {key(41, "other")}


@pytest.mark.usefixtures("half")
def test_before_anything_is_decided_the_oldest_come_first() -> None:
    """SY-12: after a start the API server lists by name."""
    node = Node()
    for number, namespace in ((9, "a"), (8, "a"), (1, "z"), (2, "z"), (3, "z")):
        made = make_service(f"s{number}", namespace=namespace, meta={"creationTimestamp": str(number)})
        assert made.facts is not None
        node.room.put(made.facts, 25)

    node.room.settle(100)

    assert node.out(8, 9, namespace="a") == []
    assert node.out(1, 2, 3, namespace="z") == [3]


@pytest.mark.usefixtures("half")
def test_who_grows_takes_room_of_younger_ones_of_its_namespace_and_of_no_other() -> None:
    """SY-12."""
    node = Node()
    for number in (1, 2):
        node.put(number, 20)
    for number in (3, 4):
        node.put(number, 25, "other")

    assert node.put(1, 31) == {key(2)}
    assert node.put(1, 51) == {key(1), key(2)}
    assert node.out(1, 2) == [1]
    assert node.out(3, 4, namespace="other") == []


@pytest.mark.usefixtures("half")
def test_who_is_programmed_may_grow_where_others_filled_the_room() -> None:
    """SY-12: by a quarter in all; newcomers, and namespaces that have their share, may not."""
    node = Node()
    node.put(1, 10)
    for number, space in ((2, "a"), (3, "b")):
        node.put(number, 45, space)

    assert node.put(4, 1) == {key(4)}
    assert node.put(1, 30) == frozenset()
    assert node.room.used == 120
    assert node.put(2, 51, "a") == {key(2, "a"), key(4)}
    assert node.out(1) == []


@pytest.mark.usefixtures("half")
def test_objects_that_are_kept_may_grow_where_others_filled_the_room() -> None:
    """SY-12."""
    ledger = ServiceRoom()
    ledger.most = 100
    assert ledger.takes("EndpointSlice", key(1), 10)
    assert ledger.takes("EndpointSlice", key(2, "a"), 50)
    assert ledger.takes("EndpointSlice", key(3, "b"), 40)

    assert not ledger.takes("EndpointSlice", key(4), 1)
    assert ledger.takes("EndpointSlice", key(1), 30)
    assert not ledger.takes("EndpointSlice", key(2, "a"), 51)
    assert (ledger.total, ledger.is_short) == (70, True)


@pytest.mark.usefixtures("half")
def test_the_oldest_that_waits_gets_what_another_leaves() -> None:
    """SY-12."""
    node = Node()
    for number in range(1, 8):
        node.put(number, 15, "abc"[number % 3])
    waiting = [one for one in range(1, 8) if node.room.refusal(key(one, "abc"[one % 3])) is not None]
    assert waiting == [7]

    node.room.drop(key(1, "b"))

    assert node.room.settle(100) == {key(7, "b")}
    assert node.room.used == 90
    assert node.room.settle(30) == {key(number, "abc"[number % 3]) for number in range(4, 8)}


@pytest.mark.usefixtures("half")
def test_a_node_warns_before_anything_stays_out() -> None:
    """SY-12."""
    node = Node()
    node.put(1, 40)
    assert node.room.shortage() == ""
    node.put(2, 1)
    assert node.room.shortage() == "namespace shop wants 41 of the 50 elements of its share"
    node.put(3, 40, "other")
    node.put(4, 0, "third")
    assert node.room.shortage() != ""


@pytest.mark.usefixtures("half")
def test_random_changes_leave_what_a_new_count_finds() -> None:
    """SY-12: 3 000 changes of 60 Services in 5 namespaces."""
    draw, node = random.Random(7), Node()
    for _ in range(3000):
        number = draw.randrange(60)
        namespace = f"n{number % 5}"
        if draw.random() < 0.2:
            node.room.drop(key(number, namespace))
            node.room.settle(100)
        else:
            node.put(number, draw.choice([1, 2, 5, 12, 30, 51]), namespace, str(draw.randrange(9)))
        granted = [one for one in range(60) if node.room.elements(key(one, f"n{one % 5}"))]
        inside = [one for one in granted if not node.out(one, namespace=f"n{one % 5}")]
        used = sum(node.room.elements(key(one, f"n{one % 5}")) for one in inside)
        assert used == node.room.used <= 125
        for space in range(5):
            assert sum(node.room.elements(key(one, f"n{space}")) for one in inside if one % 5 == space) <= 50


def test_random_changes_leave_the_table_of_a_fresh_start_and_no_memory() -> None:
    """SY-12, NF-6: 5 000 of them; chains of every number of seconds and of endpoints came and went."""
    seen = crowd("5000", "churn")

    assert seen["differs"] == {}
    assert seen["left"] == len(("the node's address", "the network of pods"))
    assert seen["grown_mib"] < 3, seen["top"]


def test_a_service_that_shrinks_is_programmed_and_one_that_makes_room_lets_another_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FS-20: each time both are looked at in the same update."""
    monkeypatch.setattr(room, "MOST_OF_SERVICE", 13)
    fold = ServiceIndex()
    desired = Desired("IPv4", replace(facts_for("IPv4").node, elements=30), fold)

    def put(number: int, endpoints: int) -> dict[str, bool]:
        fold.put_service(make_service(f"s{number}", ip=f"10.96.0.{number}", meta={"creationTimestamp": str(number)}))
        addresses = [f"10.1.{number}.{one}" for one in range(1, endpoints + 1)]
        fold.put_slice(make_slice(addresses, service=f"s{number}", family="IPv4"))
        return {one.name: plan is not None for one, plan in desired.update().items()}

    assert put(1, 6) == {}
    assert list(desired.refused) == [key(1)]
    assert put(1, 5) == {"s1": True}
    assert put(2, 2) == {}
    assert list(desired.refused) == [key(2)]
    assert put(1, 4) == {"s1": True, "s2": True}
    assert desired.refused == {}


def test_each_port_of_a_slice_gets_its_own_number() -> None:
    """IN-6, FS-20: made for those that are asked for, and made anew when the slice changes."""
    fold = ServiceIndex()
    ports = [{"name": "a", "port": 1}, {"name": "b", "port": 2}]
    fold.put_slice(make_slice(["10.1.0.1", {"ip": "10.1.0.2", "nodeName": "n"}], ports=ports))
    web = ServiceKey("shop", "web")
    before = fold.backends(web, "IPv4", PortKey("b", "TCP"))

    assert [(one.key, one.data.hex(), one.node) for one in before] == [
        ("10.1.0.1:2", "0a01000100020000", ""),
        ("10.1.0.2:2", "0a01000200020000", "n"),
    ]
    assert fold.backends(web, "IPv4", PortKey("b", "TCP"))[0] is before[0]
    assert fold.backends(web, "IPv4", PortKey("c", "TCP")) == ()
    fold.put_slice(make_slice(["10.1.0.3"], ports=ports))
    assert [one.key for one in fold.backends(web, "IPv4", PortKey("b", "TCP"))] == ["10.1.0.3:2"]
