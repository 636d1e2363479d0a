# SPDX-License-Identifier: Apache-2.0
"""What the table does with a packet that begins a flow, as the kernel does it: for flows that are judged again when
something changed, for people who ask, and for tests that hold it against Kubernetes' rules."""

import msgspec

from agent.policies.manifest.objects import DIRECTIONS, Direction
from agent.policies.rules.table import SELVES, Chain, Rule, SetKind, Table, family_of, has_block, refusal, way


class Packet(msgspec.Struct, frozen=True):
    """As it is forwarded: the destination is the one after translation. `protocol` as in `tcp`."""

    source: str
    destination: str
    protocol: str
    port: int


class Step(msgspec.Struct, frozen=True):
    """What one direction says. `policy` is the key of that which allows it; `is_self`: a pod may talk to itself."""

    direction: Direction
    is_allowed: bool
    policy: str = ""
    is_self: bool = False


def judged(table: Table, packet: Packet) -> list[Step]:
    """Empty where no policy has a say; the receiver is asked only where the sender is let go."""
    steps: list[Step] = []
    for direction in DIRECTIONS:
        whose = packet.source if direction == "egress" else packet.destination
        chain = table.ways.get(way(direction, family_of(whose)), {}).get(whose)
        if chain is not None:
            steps.append(_step(table, chain, direction, packet))
            if not steps[-1].is_allowed:
                break
    return steps


def is_let_through(table: Table, packet: Packet) -> bool:
    return all(one.is_allowed for one in judged(table, packet))


def _step(table: Table, name: str, direction: Direction, packet: Packet) -> Step:
    if name != refusal(direction):
        chain = table.chains[name]
        for rule, policy in chain.rules:
            if _holds(table, chain, rule, packet):
                return Step(direction, is_allowed=True, policy=policy)
    selves = table.sets[f"{SELVES}{family_of(packet.source)}"]
    is_self = f"{packet.source} . {packet.destination}" in selves.elements
    return Step(direction, is_allowed=is_self, is_self=is_self)


def _holds(table: Table, chain: Chain, rule: Rule, packet: Packet) -> bool:
    other = packet.source if chain.direction == "ingress" else packet.destination
    if rule.peers:
        peers = table.sets[rule.peers]
        is_there = has_block(peers, other) if peers.kind is SetKind.BLOCKS else other in peers.elements
        if not is_there:
            return False
    if rule.named:
        return f"{packet.destination} . {packet.protocol} . {packet.port}" in table.sets[rule.named].elements
    if rule.protocol and rule.protocol != packet.protocol:
        return False
    return not rule.ports or any(first <= packet.port <= last for first, last in rule.ports)
