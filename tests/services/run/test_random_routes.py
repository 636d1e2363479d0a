# SPDX-License-Identifier: Apache-2.0
"""Random Services, slices, nodes and settings: both backends send packets where Kubernetes' rules send them."""

import random
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest

from agent.model.services.nft_table import Family
from agent.services.iptables.frame import rule_settings
from agent.services.iptables.mirror import IptablesMirror
from agent.services.iptables.trace import trace_rules
from agent.services.nftables.mirror import Mirror
from agent.services.nftables.trace import Outcome, Packet, trace
from agent.services.objects.addresses import read_address
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.node_state import node_content
from agent.services.routes.desired import Desired
from tests.services.iptables.iptables_cases import BALANCER, EXTERNAL, NODE, PODS, RANGES, facts_for, pod, vip
from tests.services.making import make_service, make_slice
from tests.services.routes.oracle import Sent, Where, sent

SETS, PARTS = 1000, 4
STRANGER = {"IPv4": "198.51.100.9", "IPv6": "fd00:51::9"}
OUTSIDE = {"IPv4": "203.0.113.99", "IPv6": "fd00:203::99"}
NODE_PORT = 30_080
HERE, ZONE = "node-a", "z1"


class Case:
    """One set. `objects` are the oracle's, made of the same draws as those that the planner reads."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        self.family: Family = draw.choice(["IPv4", "IPv6"])
        self.protocol = draw.choice(["TCP", "UDP", "SCTP"])
        self.kind = draw.choice(["ClusterIP", "NodePort", "LoadBalancer"])
        self.has_external = draw.random() < 0.4
        self.zone = draw.choice([ZONE, ""])
        self.knows_pods = draw.random() < 0.8
        policies = [draw.choice(["Cluster", "Local"]) for _ in range(2)]
        has_outside = self.kind != "ClusterIP" or self.has_external
        notes = draw.choice([{}, {}, {}, {"no-endpoints": "pass"}, {"no-local-verdict": "reject"}])
        if "Local" not in policies:
            notes = {name: text for name, text in notes.items() if name != "no-local-verdict"}
        self.slices = [self._slice() for _ in range(draw.randint(0, 3))]
        known = [one["ip"] for each in self.slices for one in each["endpoints"]]
        weights = {one: draw.choice([0, 1, 3]) for one in known[:3]} if draw.random() < 0.2 else {}
        self.service = {
            "internal": policies[0],
            "external": policies[1] if has_outside else "Cluster",
            "notes": notes,
            "weights": weights,
            "ranges": RANGES[self.family] if self.kind == "LoadBalancer" and draw.random() < 0.5 else [],
        }

    def _slice(self) -> dict[str, Any]:
        draw, self._numbers = self.draw, getattr(self, "_numbers", iter(range(1, 100)))
        ends = [self._end(next(self._numbers)) for _ in range(draw.randint(0, 5))]
        ports = [{"name": "a", "protocol": self.protocol, "port": draw.choice([8080, 9090])}]
        if draw.random() < 0.5:
            ports.append({"name": "b", "protocol": self.protocol, "port": 7070})
        return {"ports": ports if draw.random() < 0.9 else ports[1:], "endpoints": ends}

    def _end(self, number: int) -> dict[str, Any]:
        draw, found = self.draw, {"ip": pod(self.family, number)}
        if draw.random() < 0.8:
            found["conditions"] = {one: draw.choice([True, False, None]) for one in ("ready", "serving", "terminating")}
        if draw.random() < 0.8:
            found["nodeName"] = draw.choice([HERE, "node-b"])
        hints: dict[str, Any] = {}
        if draw.random() < 0.7:
            hints["forZones"] = [{"name": one} for one in draw.sample([ZONE, "z2", "z3"], draw.randint(1, 2))]
        if draw.random() < 0.4:
            hints["forNodes"] = [{"name": draw.choice([HERE, "node-b"])}]
        if hints:
            found["hints"] = hints
        return found

    @property
    def where(self) -> Where:
        return Where(HERE, self.zone, [PODS[self.family]] if self.knows_pods else [])

    def fold(self) -> ServiceIndex:
        """Slices before and after the Service, and once more as they were."""
        fold, draw = ServiceIndex(), self.draw
        for number in range(len(self.slices)):
            if draw.random() < 0.3:
                fold.put_slice(make_slice([], name=f"web-{number}", family=self.family))
        one = self.service
        meta = {f"kepd.dev/{name}": text for name, text in one["notes"].items()}
        if one["weights"]:
            meta["kepd.dev/endpoint-weights"] = ",".join(f"{ip}={weight}" for ip, weight in one["weights"].items())
        node_ports = [NODE_PORT, NODE_PORT + 1] if self.kind != "ClusterIP" else [0, 0]
        names = zip("ab", (80, 81), node_ports, strict=True)
        spec: dict[str, Any] = {
            "type": self.kind,
            "ports": [
                {"name": name, "protocol": self.protocol, "port": port, "nodePort": np} for name, port, np in names
            ],
            "internalTrafficPolicy": one["internal"],
            "externalTrafficPolicy": one["external"],
            "sessionAffinity": draw.choice(["None", "ClientIP"]),
            "loadBalancerSourceRanges": one["ranges"],
            "externalIPs": [EXTERNAL[self.family]] if self.has_external else [],
        }
        if self.kind == "LoadBalancer":
            spec["status"] = {"loadBalancer": {"ingress": [{"ip": BALANCER[self.family]}]}}
        fold.put_service(make_service(ip=vip(self.family, 1), meta={"annotations": meta}, **spec))
        for number, each in enumerate(self.slices):
            fold.put_slice(make_slice(each["endpoints"], name=f"web-{number}", ports=each["ports"], family=self.family))
        return fold

    def ways(self) -> Iterator[tuple[str, str, str, int]]:
        """Port name, way in, address and number."""
        for place, name in enumerate("ab"):
            yield name, "clusterIP", vip(self.family, 1), 80 + place
            if self.has_external:
                yield name, "externalIP", EXTERNAL[self.family], 80 + place
            if self.kind == "LoadBalancer":
                yield name, "loadBalancer", BALANCER[self.family], 80 + place
            if self.kind != "ClusterIP":
                yield name, "nodePort", NODE[self.family], NODE_PORT + place


def told(outcome: Outcome) -> Sent:
    return Sent(outcome.verdict, frozenset((str(ip_address(ip)), port) for ip, port in outcome.targets))


def is_excused(want: Sent, found: Sent, way: str, *, is_from_host: bool, case: Case, is_iptables: bool) -> bool:
    """Where a rule lets them differ."""
    if way == "loadBalancer" and case.service["ranges"] and {want.verdict, found.verdict} <= {"drop", "reject"}:
        # TY-15: without endpoints iptables refuses everybody, in the ranges or not.
        return True
    # TY-13: in iptables what refuses stands in input and forward alone, as in kube-proxy.
    return is_iptables and is_from_host and found.verdict == "pass" and want.verdict in ("reject", "drop")


@pytest.mark.parametrize("part", range(PARTS))
def test_a_thousand_random_sets_lead_where_the_rules_lead(part: int) -> None:
    """SEL-1 to SEL-9, TY-1 to TY-21: policies, hints, affinity, ends on their way out, ranges, weights, named ports."""
    seen: set[str] = set()
    for seed in range(part, SETS, PARTS):
        case = Case(seed)
        options: dict[str, Any] = {
            "node_port_addresses": ("primary",),
            "labels": {"topology.kubernetes.io/zone": case.zone} if case.zone else {},
            "cluster_ranges": (PODS[case.family],) if case.knows_pods else (),
        }
        facts = facts_for(case.family, **options)
        desired = Desired(case.family, facts.node, case.fold())
        elements, rules = Mirror(), IptablesMirror()
        plans = desired.update()
        elements.commit(elements.stage(plans, node_content(facts.node)))
        rules.commit(rules.stage(plans, rule_settings(facts)))
        content, chains = elements.content(), rules.content()
        for name, way, target, port in case.ways():
            for source in (pod(case.family, 250), NODE[case.family], STRANGER[case.family], OUTSIDE[case.family]):
                is_from_host = source == NODE[case.family]
                want = sent(case.service, case.slices, name, way, source, case.where, is_from_host=is_from_host)
                seen.add(want.verdict)
                ends = [read_address(source), read_address(target)]
                packet = Packet(*ends, case.protocol, port, is_from_host, way == "nodePort")  # type: ignore[arg-type]
                for is_iptables, found in (
                    (False, told(trace(content, facts.table, packet))),
                    (True, told(trace_rules(chains, packet))),
                ):
                    if found != want and not is_excused(
                        want, found, way, is_from_host=is_from_host, case=case, is_iptables=is_iptables
                    ):
                        raise AssertionError((seed, name, way, source, want, found, case.service, case.slices))
    assert seen == {"dnat", "reject", "drop", "pass"}
