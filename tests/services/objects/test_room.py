# SPDX-License-Identifier: Apache-2.0
"""Objects of unusual size: what they cost, and who gets room where all together are too much."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.model.service import PortKey, ServiceKey
from agent.services.objects import bounds as room
from agent.services.objects.bounds import Room, Size
from agent.services.objects.fold import Fold
from agent.services.routes.desired import Desired
from tests.services.iptables.iptables_cases import facts_for
from tests.services.making import make_service, make_slice

MOST_MIB = 150
HONEST = {f"honest{number}" for number in range(1, 51)}
ROOT = Path(__file__).parents[2]


def crowd(case: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.services.objects.crowd", case],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
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
    assert "3000000 endpoints by port and address of the Service; expected at most 131072" in seen["told"]["large"][1]


def test_many_large_services_leave_room_for_small_ones() -> None:
    """FS-20: seven of 100 000 endpoints each; two fit."""
    seen = crowd("services")

    assert seen["peak_mib"] < 2 * MOST_MIB
    assert set(seen["programmed"]) == HONEST | {"large0", "large1"}
    assert set(seen["told"]) == {f"large{number}" for number in range(2, 7)}


def key(number: int) -> ServiceKey:
    return ServiceKey("shop", f"s{number}")


def test_the_smallest_get_room_first_whoever_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-20."""
    monkeypatch.setattr(room, "MOST_OF_NODE", 100)
    made = Room()
    made.put(key(1), Size(80, 80))
    assert made.settle() == frozenset()
    made.put(key(2), Size(30, 30))
    assert made.settle() == {key(1)}
    made.put(key(3), Size(40, 40))
    assert (made.settle(), made.refusal(key(3))) == (frozenset(), None)
    assert "80 endpoints by port, and all Services of this node have 150" in str(made.refusal(key(1)))

    made.drop(key(3))
    made.put(key(2), Size(20, 20))
    assert made.settle() == {key(1)}
    assert made.refusal(key(1)) is None


def test_a_service_that_shrinks_is_programmed_and_one_that_makes_room_lets_another_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FS-20: each time both are looked at in the same update."""
    monkeypatch.setattr(room, "MOST_OF_SERVICE", 5)
    monkeypatch.setattr(room, "MOST_OF_NODE", 7)
    fold = Fold()
    desired = Desired("IPv4", facts_for("IPv4").node, fold)

    def put(number: int, endpoints: int) -> dict[str, bool]:
        fold.put_service(make_service(f"s{number}", ip=f"10.96.0.{number}"))
        addresses = [f"10.1.{number}.{one}" for one in range(1, endpoints + 1)]
        fold.put_slice(make_slice(addresses, service=f"s{number}", family="IPv4"))
        return {one.name: plan is not None for one, plan in desired.update().items()}

    assert put(1, 6) == {}
    assert list(desired.refused) == [key(1)]
    assert put(1, 5) == {"s1": True}
    assert put(2, 3) == {"s1": False, "s2": True}
    assert list(desired.refused) == [key(1)]
    assert put(2, 2) == {"s1": True, "s2": True}
    assert desired.refused == {}


def test_each_port_of_a_slice_gets_its_own_number() -> None:
    """IN-6, FS-20: made for those that are asked for, and made anew when the slice changes."""
    fold = Fold()
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
