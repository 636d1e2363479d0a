# SPDX-License-Identifier: Apache-2.0
"""Random policies, pods and packets, small enough that they often concern each other."""

import random
from typing import Any

from tests.policies.oracle import NAMESPACE_LABEL, Packet, Pod

NAMESPACES = ("default", "shop", "bank")
LABELS = {"app": ("web", "db", "job"), "tier": ("a", "b")}
NAMES = ("http", "dns", "admin")
NUMBERS = (53, 80, 443, 8080, 8081, 9000)
PROTOCOLS = ("TCP", "UDP", "SCTP")
NODE = ("10.0.0.1", "fd00::1")
BLOCKS = (
    ("10.0.0.0/24", ("10.0.0.0/28", "10.0.0.17/32", "10.0.0.8/29", "10.0.0.0/25")),
    ("0.0.0.0/0", ("10.0.0.0/24", "192.0.2.128/25")), ("192.0.2.0/24", ("192.0.2.7/32",)), ("10.0.0.20/32", ()),
    ("fd00::/64", ("fd00::10/124", "fd00::18/125")), ("::/0", ("fd00::/64",)), ("2001:db8::/32", ("2001:db8::7/128",)),
)  # fmt: skip
OUTSIDE = ("192.0.2.7", "192.0.2.200", "203.0.113.9", "2001:db8::7", "2001:db8::8")


class Cases:
    def __init__(self, seed: int, protocols: tuple[str, ...] = PROTOCOLS) -> None:
        self._random = random.Random(seed)
        self._protocols = protocols

    def pods(self, most: int = 8) -> list[Pod]:
        return [self._pod(number) for number in range(self._random.randint(1, most))]

    def _pod(self, number: int) -> Pod:
        pick, is_host = self._random, self._random.random() < 0.08
        labels = {key: pick.choice(values) for key, values in LABELS.items() if pick.random() < 0.7}
        own = (f"10.0.0.{16 + number}", f"fd00::{16 + number:x}")
        addresses = NODE if is_host else pick.choice((own, own, own[:1], own[1:]))
        ports = {(pick.choice(NAMES), pick.choice(self._protocols), pick.choice(NUMBERS)) for _ in range(2)}
        return Pod(
            pick.choice(NAMESPACES), f"pod-{number}", tuple(labels.items()), addresses, is_host, tuple(sorted(ports))
        )

    def policies(self, most: int = 5) -> list[dict[str, Any]]:
        return [self.policy(f"policy-{number}") for number in range(self._random.randint(0, most))]

    def policy(self, name: str) -> dict[str, Any]:
        pick = self._random
        spec: dict[str, Any] = {"podSelector": self._selector()}
        if pick.random() < 0.7:
            spec["ingress"] = [self._rule("from") for _ in range(pick.randint(0, 2))]
        if pick.random() < 0.5:
            spec["egress"] = [self._rule("to") for _ in range(pick.randint(0, 2))]
        if pick.random() < 0.6:
            spec["policyTypes"] = pick.choice((["Ingress"], ["Egress"], ["Ingress", "Egress"]))
        return {
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": pick.choice(NAMESPACES)}, "spec": spec,
        }  # fmt: skip

    def packet(self, pods: list[Pod]) -> Packet:
        pick = self._random
        version = pick.choice((4, 6))
        known = [one for pod in pods for one in pod.addresses] * 3 + [*OUTSIDE, *NODE]
        usable = [one for one in known if (":" in one) == (version == 6)]
        return Packet(pick.choice(usable), pick.choice(usable), pick.choice(self._protocols), pick.choice(NUMBERS))

    def _selector(self) -> dict[str, Any]:
        pick = self._random
        found: dict[str, Any] = {}
        if pick.random() < 0.5:
            key = pick.choice(tuple(LABELS))
            found["matchLabels"] = {key: pick.choice(LABELS[key])}
        if pick.random() < 0.4:
            found["matchExpressions"] = [self._expression(LABELS)]
        return found

    def _expression(self, labels: Any) -> dict[str, Any]:
        pick = self._random
        key, operator = pick.choice(tuple(labels)), pick.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        values = pick.sample(labels[key], pick.randint(1, len(labels[key])))
        return {"key": key, "operator": operator, **({"values": values} if operator.endswith("In") else {})}

    def _rule(self, side: str) -> dict[str, Any]:
        pick = self._random
        rule: dict[str, Any] = {}
        if pick.random() < 0.8:
            rule[side] = [self._peer() for _ in range(pick.randint(0, 3))]
        if pick.random() < 0.7:
            rule["ports"] = [self._port() for _ in range(pick.randint(0, 3))]
        return rule

    def _peer(self) -> dict[str, Any]:
        pick = self._random
        if pick.random() < 0.35:
            cidr, inside = pick.choice(BLOCKS)
            block: dict[str, Any] = {"cidr": cidr}
            if inside and pick.random() < 0.6:
                block["except"] = pick.sample(inside, pick.randint(1, len(inside)))
            return {"ipBlock": block}
        found: dict[str, Any] = {}
        if pick.random() < 0.5:
            found["namespaceSelector"] = self._namespaces()
        if not found or pick.random() < 0.5:
            found["podSelector"] = self._selector()
        return found

    def _namespaces(self) -> dict[str, Any]:
        pick = self._random
        if pick.random() < 0.3:
            return {}
        if pick.random() < 0.4:
            return {"matchLabels": {NAMESPACE_LABEL: pick.choice(NAMESPACES)}}
        return {"matchExpressions": [self._expression({NAMESPACE_LABEL: NAMESPACES, "team": ("red", "blue")})]}

    def _port(self) -> dict[str, Any]:
        pick = self._random
        found: dict[str, Any] = {}
        if pick.random() < 0.7:
            found["protocol"] = pick.choice(self._protocols)
        kind = pick.random()
        if kind < 0.25:
            found["port"] = pick.choice(NAMES)
        elif kind < 0.85:
            found["port"] = pick.choice(NUMBERS)
            if pick.random() < 0.3:
                found["endPort"] = found["port"] + pick.choice((0, 1, 1000))
        return found
