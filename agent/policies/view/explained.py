# SPDX-License-Identifier: Apache-2.0
"""A policy in words, with the pods and addresses that it means now; and why a packet passes or does not."""

from collections.abc import Collection, Iterable, Iterator

from agent.model.selector import compile_selector
from agent.policies.manifest.objects import DIRECTIONS, Direction, Peer, PolicedPod, Policy, PortFields
from agent.policies.rules.compiling import Selection, selection_of
from agent.policies.rules.judging import Packet, judged
from agent.policies.rules.table import Table

MOST_NAMED = 12
ENDS: dict[Direction, str] = {"egress": "to", "ingress": "from"}


def policy_lines(policy: Policy, pods: Collection[PolicedPod], why_not: str) -> Iterator[str]:
    """`why_not`: why it is not in force, empty if it is."""
    selected = Selection(policy.namespace, compile_selector(policy.spec.pod_selector.selector))
    mine = [one for one in pods if selected.selects(one)]
    yield f"selects pods of namespace {policy.namespace} by {selected.pods}: {_listed(mine) or 'none is here now'}"
    if hosts := [one.key for one in mine if one.is_host_network]:
        yield f"{', '.join(hosts)}: in the network of the node, so no policy limits it"
    if loose := [one.key for one in mine if not one.links and not one.is_host_network]:
        yield f"{', '.join(loose)}: on no bridge that CNI names, so its source addresses are not held"
    if why_not:
        yield f"not in force: {why_not}"
    for direction in DIRECTIONS:
        yield from _direction(policy, direction, pods)


def _direction(policy: Policy, direction: Direction, pods: Collection[PolicedPod]) -> Iterator[str]:
    if not policy.limits(direction):
        yield f"{direction}: not limited by this policy"
        return
    rules = policy.rules(direction)
    if not rules:
        yield f"{direction}: nothing is allowed by this policy"
    for rule in rules:
        ports = ", ".join(map(_port, rule.ports)) or "every port and protocol"
        if not rule.peers:
            yield f"{direction}: {ENDS[direction]} everybody, {ports}"
        for peer in rule.peers:
            yield f"{direction}: {ENDS[direction]} {_peer(peer, policy, pods)}, {ports}"


def _port(one: PortFields) -> str:
    if one.port is None:
        return f"all of {one.protocol}"
    last = f"-{one.end_port}" if one.end_port is not None else ""
    return f"{one.protocol} {one.port}{last}"


def _peer(peer: Peer, policy: Policy, pods: Collection[PolicedPod]) -> str:
    if peer.ip_block is not None:
        without = f" without {', '.join(peer.ip_block.except_)}" if peer.ip_block.except_ else ""
        return f"{peer.ip_block.cidr}{without}"
    one = selection_of(peer, policy.namespace)
    where = f"namespace {policy.namespace}" if one.namespaces is None else f"namespaces by {one.namespaces}"
    there = _listed([pod for pod in pods if one.selects(pod)]) or "none is here now"
    return f"pods of {where} by {one.pods} ({there})"


def _listed(pods: Collection[PolicedPod]) -> str:
    texts = [f"{one.key} {' '.join(one.addresses or ('without address',))}" for one in pods]
    more = [f"and {len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
    return ", ".join([*texts[:MOST_NAMED], *more])


def traced(
    table: Table, packet: Packet, node: Collection[str], limiting: Iterable[tuple[Direction, str]]
) -> tuple[bool, list[tuple[str, str]]]:
    """Whether it passes, and what is said on the way. `limiting`: by direction the policies that select the sender or
    the receiver."""
    if packet.source in node or packet.destination in node:
        return True, [("policies", "from or to the node itself, which no policy limits")]
    known = list(limiting)
    steps = judged(table, packet)
    found = []
    for one in steps:
        if one.is_self:
            text = "a pod may always talk to itself"
        elif one.is_allowed:
            text = f"allowed by policy {one.policy}"
        else:
            others = sorted(key for direction, key in known if direction == one.direction)
            text = f"refused: no rule allows it of {', '.join(others) or 'any policy, as its labels are not known'}"
        found.append((f"policies {one.direction}", text))
    return all(one.is_allowed for one in steps), found or [("policies", "no policy selects sender or receiver")]
