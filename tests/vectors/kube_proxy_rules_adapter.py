# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of kube-proxy-rules.json: a Service with its slices in, verdicts of packets and iptables rules out.

Owns: decoding a case, and writing what both of our backends make of it in the form of the vectors. An outcome is
`reject`, `drop`, `pass`, or the endpoints in order, `*` behind those that see the node's address, and the seconds for
which clients come back. Rules are those of iptables-save with comments; the rule that opens a health check port is its
number alone, as kube-proxy writes one for each port of the Service.
Never: knows a case by its id.
"""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import cast

import msgspec

from agent.model.kube_objects import EndpointSlice, Service
from agent.model.services.iptables_rules import as_saved
from agent.model.services.nft_table import Content, Family
from agent.model.services.service import Protocol
from agent.services.iptables.frame import rule_settings
from agent.services.iptables.mirror import IptablesMirror
from agent.services.nftables.mirror import Mirror
from agent.services.nftables.trace import Outcome, Packet, trace
from agent.services.objects.addresses import endpoint_key, read_address
from agent.services.objects.node_state import FamilyFacts, NodeSettings, NodeSight, family_facts, node_content
from agent.services.objects.reading_service import read_service
from agent.services.objects.reading_slice import read_slice
from agent.services.routes.desired import Desired

SHARED = ("KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL")
HEALTH = "health check node port"


def cases(document: dict) -> Iterator[tuple[str, str, dict, dict]]:
    for case in document["cases"]:
        yield case["id"], "", {**case, "node": document["node"]}, case["expect"]


def check(_kind: str, given: dict, expect: dict) -> None:
    actual = {}
    for family in expect:
        actual[family] = {
            "packets": _packets(given, family, expect[family]["packets"]),
            "rules": _rules(given, family),
        }
    assert expect == actual


def _facts(given: dict, family: Family, **settings: object) -> FamilyFacts:
    node = given["node"]
    own = {
        "node": node["name"],
        "addresses": tuple(node["addresses"]),
        "labels": {"topology.kubernetes.io/zone": node["zone"]},
        "cluster_ranges": tuple(node["podRanges"]),
        "rejects_with_reset": False,
        **settings,
    }
    return family_facts(family, NodeSettings(**own), NodeSight(), ())


def _desired(given: dict, facts: FamilyFacts, family: Family) -> Desired:
    desired = Desired(family, facts.node)
    desired.fold.put_service(read_service(msgspec.convert(given["service"], Service)))
    for item in given["endpointSlices"]:
        desired.fold.put_slice(read_slice(msgspec.convert(item, EndpointSlice)))
    return desired


def _packets(given: dict, family: Family, asked: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    facts = _facts(given, family)
    desired, mirror = _desired(given, facts, family), Mirror()
    mirror.commit(mirror.stage(desired.update(), node_content(facts.node)))
    content = mirror.content()
    return {to: {source: _verdict(content, facts, source, to) for source in sources} for to, sources in asked.items()}


def _verdict(content: Content, facts: FamilyFacts, source: str, to: str) -> str:
    target, _, protocol = to.partition("/")
    address, _, port = target.rpartition(":")
    start, end = read_address(source), read_address(address.strip("[]"))
    assert start is not None
    assert end is not None
    own = facts.node.addresses
    packet = Packet(start, end, cast("Protocol", protocol), int(port), start in own, end in own)
    return _told(trace(content, facts.table, packet), start.packed)


def _told(outcome: Outcome, source: bytes) -> str:
    if outcome.verdict != "dnat":
        return outcome.verdict
    ends = []
    for address, port in outcome.targets:
        is_masqueraded = address == source if outcome.is_masqueraded is None else outcome.is_masqueraded
        text = endpoint_key(_text(address), port)
        ends.append(f"{text}*" if is_masqueraded else text)
    return " ".join(sorted(ends)) + (f" for {outcome.affinity_s} s" if outcome.affinity_s else "")


def _text(packed: bytes) -> str:
    return str(ip_address(packed))


def _rules(given: dict, family: Family) -> dict[str, dict[str, list[str]]]:
    facts = _facts(given, family, node_port_addresses=())
    desired, mirror = _desired(given, facts, family), IptablesMirror()
    mirror.commit(mirror.stage(desired.update(), rule_settings(facts)))
    (key,) = desired.fold.services
    return {
        table: {
            name: sorted(set(map(_plain, rules))) if name in SHARED else [as_saved(rule) for rule in rules]
            for name, rules in chains.items()
        }
        for table, chains in mirror.content(only=key).items()
        if chains
    }


def _plain(rule: str) -> str:
    return f"health {rule.split('--dport ')[1].split(maxsplit=1)[0]}" if HEALTH in rule else rule
