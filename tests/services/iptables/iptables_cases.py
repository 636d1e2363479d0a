# SPDX-License-Identifier: Apache-2.0
"""Services of every kind as plans, for tests of the iptables rules."""

from typing import Any

from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.iptables.frame import rule_settings
from agent.services.iptables.rendering import RuleSettings
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.node_state import FamilyFacts, NodeSettings, NodeSight, family_facts
from agent.services.routes.desired import Desired
from agent.services.routes.frontends import ServicePlan
from tests.services.making import make_service, make_slice

NODE = {"IPv4": "192.168.0.10", "IPv6": "fd00:7::10"}
PODS = {"IPv4": "10.1.0.0/16", "IPv6": "fd00:1::/64"}
EXTERNAL = {"IPv4": "203.0.113.7", "IPv6": "fd00:203::7"}
BALANCER = {"IPv4": "203.0.113.8", "IPv6": "fd00:203::8"}
RANGES = {"IPv4": ["198.51.100.0/24"], "IPv6": ["fd00:51::/64"]}


def facts_for(family: Family, **settings: Any) -> FamilyFacts:
    fields = {
        "node": "node-a",
        "addresses": (NODE[family],),
        "cluster_ranges": (PODS[family],),
        "node_port_addresses": (),
        **settings,
    }
    return family_facts(family, NodeSettings(**fields), NodeSight(), ())


def settings_for(family: Family, **settings: Any) -> RuleSettings:
    return rule_settings(facts_for(family, **settings))


def vip(family: Family, number: int) -> str:
    return f"10.96.0.{number}" if family == "IPv4" else f"fd00:96::{number:x}"


def pod(family: Family, number: int) -> str:
    return f"10.1.0.{number}" if family == "IPv4" else f"fd00:1::{number:x}"


def put(
    fold: ServiceIndex, family: Family, name: str, number: int, endpoints: int = 2, here: int = 1, **spec: Any
) -> None:
    """A Service whose first endpoints are on this node."""
    fold.put_service(make_service(name, ip=vip(family, number), **spec))
    addresses = [
        {"ip": pod(family, number * 10 + one), "nodeName": "node-a" if one < here else "node-b"}
        for one in range(endpoints)
    ]
    names = [(one["name"], one.get("protocol", "TCP")) for one in spec.get("ports", [{"name": "http"}])]
    ports = [{"name": name, "protocol": protocol, "port": 8080} for name, protocol in names]
    fold.put_slice(make_slice(addresses, service=name, ports=ports, family=family))


def plans_of(fold: ServiceIndex, family: Family, **settings: Any) -> dict[ServiceKey, ServicePlan | None]:
    desired = Desired(family, facts_for(family, **settings).node, fold)
    desired.changed.update(fold.services)
    return desired.update()


def all_kinds(family: Family) -> dict[ServiceKey, ServicePlan | None]:
    """Every kind of frontend, policy and verdict."""
    fold = ServiceIndex()
    ingress = {"loadBalancer": {"ingress": [{"ip": BALANCER[family]}]}}
    node_port = [{"name": "http", "port": 80, "nodePort": 30080}]
    put(fold, family, "plain", 1, 3)
    put(fold, family, "local", 2, 2, internalTrafficPolicy="Local")
    put(fold, family, "sticky", 3, 3, sessionAffinity="ClientIP")
    put(fold, family, "empty", 4, 0)
    put(fold, family, "udp", 5, 1, ports=[{"name": "dns", "protocol": "UDP", "port": 53}])
    put(fold, family, "sctp", 6, 1, ports=[{"name": "", "protocol": "SCTP", "port": 5}])
    put(fold, family, "ports", 7, 2, type="NodePort", ports=node_port, externalIPs=[EXTERNAL[family]])
    put(
        fold,
        family,
        "balanced",
        8,
        2,
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=32000,
        loadBalancerSourceRanges=RANGES[family],
        status=ingress,
        ports=[{"name": "http", "port": 81, "nodePort": 30081}],
    )
    absent = [{"name": "http", "port": 82, "nodePort": 30082}]
    put(fold, family, "absent", 9, 1, 0, type="NodePort", externalTrafficPolicy="Local", ports=absent)
    nobody = [{"name": "u", "protocol": "UDP", "port": 83, "nodePort": 30083}]
    put(fold, family, "nobody", 10, 0, type="NodePort", ports=nobody)
    weights = f"{pod(family, 110)}=3"
    put(fold, family, "weighted", 11, 3, meta={"annotations": {"kepd.dev/endpoint-weights": weights}})
    return plans_of(fold, family)
