# SPDX-License-Identifier: Apache-2.0
"""The plane judges as Kubernetes' rules do."""

from agent.policies.rules.building import Builder
from agent.policies.rules.judging import Packet, is_let_through
from agent.policies.rules.table import Table
from tests.policies.making import policed, policies_of
from tests.policies.oracle import Packet as Asked
from tests.policies.oracle import passes
from tests.policies.random_cases import NODE, Cases

SEEDS = 3000
PACKETS = 12


def lets_through(table: Table, packet: Asked) -> bool:
    """What the node itself sends and gets is not forwarded, so it comes to no rule."""
    if packet.source in NODE or packet.destination in NODE:
        return True
    return is_let_through(table, Packet(packet.source, packet.destination, packet.protocol.lower(), packet.port))


def test_random_policies_judge_random_packets_as_the_rules_of_kubernetes_do() -> None:
    """POL-01."""
    wrong, refused = [], 0
    for seed in range(SEEDS):
        cases = Cases(seed)
        pods, policies = cases.pods(), cases.policies()
        table = Builder().table(policies_of(policies), map(policed, pods))
        for packet in [cases.packet(pods) for _ in range(PACKETS)]:
            expected = passes(policies, pods, NODE, packet)
            refused += not expected
            if lets_through(table, packet) != expected:
                wrong.append((seed, packet, expected))

    assert wrong == []
    assert refused > SEEDS
