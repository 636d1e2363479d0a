# SPDX-License-Identifier: Apache-2.0
"""The same Services through both backends: whatever is sent, both lead it to the same end.

Where they differ by rule stands in `allowed`, rule by rule.
"""

from collections.abc import Iterator
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.services.iptables_rules import Content
from agent.model.services.nft_table import Content as Elements
from agent.model.services.nft_table import Family
from agent.model.services.service import Protocol
from agent.services.iptables.frame import rule_settings
from agent.services.iptables.mirror import IptablesMirror
from agent.services.iptables.trace import trace_rules
from agent.services.nftables.mirror import Mirror
from agent.services.nftables.trace import Outcome, Packet, trace
from agent.services.objects.addresses import read_address
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.node_state import node_content
from tests.services.iptables.iptables_cases import BALANCER, EXTERNAL, NODE, RANGES, facts_for, plans_of, pod, put, vip

STRANGER = {"IPv4": "198.51.100.9", "IPv6": "fd00:51::9"}
OUTSIDE = {"IPv4": "203.0.113.99", "IPv6": "fd00:203::99"}
NODE_PORT = 30_000
OPTIONS = {"node_port_addresses": ("primary",)}

drawn_services = st.lists(
    st.fixed_dictionaries(
        {
            "endpoints": st.integers(0, 3),
            "here": st.integers(0, 2),
            "type": st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"]),
            "externalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
            "internalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
            "sessionAffinity": st.sampled_from(["None", "ClientIP"]),
            "is_external": st.booleans(),
            "is_restricted": st.booleans(),
            "protocol": st.sampled_from(["TCP", "UDP", "SCTP"]),
            "annotations": st.sampled_from([{}, {}, {"no-endpoints": "pass"}, {"no-local-verdict": "reject"}]),
        }
    ),
    min_size=1,
    max_size=3,
)


def folded(drawn: list[dict[str, Any]], family: Family) -> ServiceIndex:
    fold = ServiceIndex()
    for number, one in enumerate(drawn, 1):
        fields = dict(one)
        is_external, is_restricted, protocol, notes = map(
            fields.pop, ("is_external", "is_restricted", "protocol", "annotations")
        )
        node_port = NODE_PORT + number if fields["type"] != "ClusterIP" else 0
        ports = [{"name": "p", "protocol": protocol, "port": 80 + number, "nodePort": node_port}]
        if is_external:
            fields["externalIPs"] = [EXTERNAL[family]]
        if fields["type"] == "LoadBalancer":
            fields["status"] = {"loadBalancer": {"ingress": [{"ip": BALANCER[family]}]}}
            fields["loadBalancerSourceRanges"] = RANGES[family] if is_restricted else []
        fields["meta"] = {"annotations": {f"kepd.dev/{name}": value for name, value in notes.items()}}
        put(fold, family, f"s{number}", number, ports=ports, **fields)
    return fold


def packets(drawn: list[dict[str, Any]], family: Family) -> Iterator[Packet]:
    """From a pod that may be an endpoint, another pod, the host, and from outside within and without the ranges."""
    for number, one in enumerate(drawn, 1):
        sources = [pod(family, 250), NODE[family], STRANGER[family], OUTSIDE[family]]
        # An endpoint of another node cannot come from a link of this one, and only iptables would masquerade it (TY-8).
        sources += [pod(family, number * 10)] if one["here"] else []
        targets = [(text, 80 + number) for text in (vip(family, number), EXTERNAL[family], BALANCER[family])]
        for text, port in (*targets, (NODE[family], NODE_PORT + number)):
            for source in sources:
                start, end = read_address(source), read_address(text)
                assert start is not None
                assert end is not None
                is_host, is_node = source == NODE[family], text == NODE[family]
                for protocol in (one["protocol"], "TCP"):
                    yield Packet(start, end, cast("Protocol", protocol), port, is_host, is_node)


def through_both(fold: ServiceIndex, family: Family) -> tuple[Elements, Content]:
    facts = facts_for(family, **OPTIONS)
    plans = plans_of(fold, family, **OPTIONS)
    elements, rules = Mirror(), IptablesMirror()

    elements.commit(elements.stage(plans, node_content(facts.node)))
    rules.commit(rules.stage(plans, rule_settings(facts)))
    return elements.content(), rules.content()


def end_of(outcome: Outcome) -> tuple[Any, ...]:
    """What a client and a server can tell."""
    if outcome.verdict != "dnat":
        return (outcome.verdict,)
    return (outcome.verdict, frozenset(outcome.targets), outcome.is_masqueraded, outcome.affinity_s)


def allowed(packet: Packet, nft: Outcome, ipt: Outcome, *, is_restricted: bool) -> str:
    """The rule by which the ends may differ; empty if they may not."""
    steps = " ".join(map(str, nft.steps))
    if ipt.verdict == "pass" and "a cluster IP without such a port" in steps:
        return "TY-16: iptables leaves ports alone that no Service has"
    if ipt.verdict == "pass" and nft.verdict in ("reject", "drop") and packet.is_from_host:
        return "TY-13: KUBE-EXTERNAL-SERVICES stands in input and forward alone, as in kube-proxy"
    if {nft.verdict, ipt.verdict} <= {"drop", "reject"} and is_restricted:
        return "TY-15: without endpoints kube-proxy refuses everybody, in the ranges or not"
    return ""


@given(drawn_services, st.sampled_from(["IPv4", "IPv6"]))
@settings(max_examples=50, deadline=None)
def test_both_backends_lead_every_packet_to_the_same_end(drawn: list[dict[str, Any]], family: Family) -> None:
    facts = facts_for(family, **OPTIONS)
    elements, rules = through_both(folded(drawn, family), family)
    is_restricted = any(one["is_restricted"] for one in drawn)
    for packet in packets(drawn, family):
        nft, ipt = trace(elements, facts.table, packet), trace_rules(rules, packet)
        if end_of(nft) == end_of(ipt):
            continue
        assert allowed(packet, nft, ipt, is_restricted=is_restricted), (packet, nft, ipt)
