# SPDX-License-Identifier: Apache-2.0
"""The cluster's small load balancer."""

from typing import Any

import pytest

from tests.e2e.balancer import FINALIZER, Addresses, Balancer, gateways, is_balanced, patches
from tests.e2e.names import Api

NODES = [
    {
        "status": {
            "addresses": [
                {"type": "Hostname", "address": f"n{number}"},
                {"type": "InternalIP", "address": f"192.168.9.{number}"},
                {"type": "InternalIP", "address": f"fd00:9::{number}"},
            ]
        }
    }
    for number in (1, 2)
]


def service(uid: str = "u", *, type: str = "LoadBalancer", held: bool = False, ip: str = "", **spec: Any) -> Any:  # noqa: A002  # Kubernetes' name
    families = spec.pop("ipFamilies", ["IPv4"])
    status = {"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]} if ip else {}}
    meta = {"uid": uid, "namespace": "shop", "name": uid, "finalizers": ["own", *([FINALIZER] if held else [])]}
    return {"metadata": meta, "spec": {"type": type, "ipFamilies": families, **spec}, "status": status}


class Known(Api):
    def __init__(self, *services: Any) -> None:
        """No server."""
        self.services = services
        self.patches: list[tuple[str, Any]] = []

    def get(self, path: str) -> Any:
        return {"items": NODES if path.endswith("nodes") else self.services}

    def patch(self, path: str, patch: Any) -> None:
        self.patches.append((path, patch))


def test_a_number_is_kept_and_a_free_one_is_used_again() -> None:
    given = Addresses()
    dual = service("b", ipFamilies=["IPv6", "IPv4"])

    assert given.of(service("a")) == {"IPv4": "198.51.100.1"}
    assert given.of(dual) == {"IPv6": "2001:db8:51::2", "IPv4": "198.51.100.2"}
    given.keep(["b"])
    assert given.of(service("c")) == {"IPv4": "198.51.100.1"}
    assert given.of(dual)["IPv4"] == "198.51.100.2"


def test_it_is_held_before_it_has_an_address_and_let_go_after() -> None:
    address = {"IPv4": "198.51.100.1"}
    held = service(held=True, ip=address["IPv4"])

    assert patches(service(), address) == [
        ("", {"metadata": {"finalizers": ["own", FINALIZER]}}),
        ("/status", {"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}}),
    ]
    assert patches(held, address) == []
    assert patches(held, {}) == [
        ("/status", {"status": {"loadBalancer": {"ingress": None}}}),
        ("", {"metadata": {"finalizers": ["own"]}}),
    ]
    assert patches(service(type="ClusterIP"), {}) == []


@pytest.mark.parametrize(
    ("one", "is_so"),
    [
        (service(), True),
        (service(type="NodePort"), False),
        (service(loadBalancerClass="other"), False),
        ({**service(), "metadata": {"uid": "u", "deletionTimestamp": "now"}}, False),
    ],
)
def test_what_is_balanced(one: Any, is_so: bool) -> None:
    assert is_balanced(one) is is_so


def test_clients_with_affinity_stay_with_one_node() -> None:
    healthy = [{"IPv4": "192.168.9.1"}, {"IPv4": "192.168.9.2"}]

    assert gateways(service(), healthy, "IPv4") == ("192.168.9.1", "192.168.9.2")
    assert gateways(service(sessionAffinity="ClientIP"), healthy, "IPv4") == ("192.168.9.1",)
    assert gateways(service(), healthy, "IPv6") == ()


def test_traffic_that_stays_local_goes_to_nodes_that_are_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    led: list[tuple[str, tuple[str, ...]]] = []
    healthy = {"192.168.9.2"}
    monkeypatch.setattr("tests.e2e.balancer.route", lambda address, to: led.append((address, tuple(to))))
    monkeypatch.setattr("tests.e2e.balancer.passes", lambda node, _port: node["IPv4"] in healthy)
    api = Known(service("a", healthCheckNodePort=30001), service("b", type="ClusterIP", held=True, ip="198.51.100.9"))
    balancer = Balancer(api)

    balancer.turn()
    balancer.turn()
    assert led == [("198.51.100.1", ("192.168.9.2",))], "nothing is led twice"
    assert [path.rpartition("/")[2] for path, _ in api.patches[:4]] == ["a", "status", "status", "b"]
    healthy.clear()
    balancer.turn()
    assert led[1:] == [("198.51.100.1", ())]
