# SPDX-License-Identifier: Apache-2.0
"""Random policies in the kernel, and real connections between namespaces: what the rules say is what happens."""

from collections.abc import Iterator

import pytest

from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.named_table import NamedTable
from agent.policies.rules.building import Builder
from agent.policies.rules.changing import change, outgrows
from agent.policies.rules.nft_text import COUNTERS, REMOVAL, whole_text
from agent.policies.rules.table import TABLE
from tests.node.policy_network import PolicyNetwork, policy_network
from tests.policies.making import policed, policies_of
from tests.policies.oracle import passes
from tests.policies.random_cases import NODE, Cases

pytestmark = pytest.mark.node
CASES = 300


@pytest.fixture(scope="module")
def network() -> Iterator[PolicyNetwork]:
    with policy_network() as made:
        yield made


@pytest.fixture
def table(network: PolicyNetwork) -> Iterator[NamedTable]:
    node = network.node
    made = NamedTable("inet", TABLE, command=node.command("nft"), opens=lambda: node.call(open_socket))
    yield made
    made.close()
    node.run("nft", "-f", "-", text=REMOVAL)


async def test_random_connections_go_where_the_rules_of_kubernetes_let_them(
    network: PolicyNetwork, table: NamedTable
) -> None:
    """POL-02: both families, TCP and UDP, over one bridge and routed; each table is made from the one before."""
    builder, before = Builder(), None
    wrong, refused = [], 0

    async def counted() -> int:
        return sum([await table.counter(name) for name in COUNTERS[:2]])

    for seed in range(CASES):
        cases = Cases(seed, ("TCP", "UDP"))
        pods, policies = cases.pods(), [cases.policy(f"policy-{number}") for number in range(1 + seed % 4)]
        wanted = builder.table(policies_of(policies), map(policed, pods))
        if before is None or outgrows(before, wanted):
            await table.load(whole_text(wanted))
        else:
            made = change(before, wanted)
            await table.add_chains(made.new_chains)
            await table.load(made.text)
            await table.change(made.elements, made.gone_chains, made.gone_sets)
        before = wanted
        packet = cases.packet(pods)
        while packet.source in NODE or packet.source == packet.destination:
            packet = cases.packet(pods)
        expected = passes(policies, pods, NODE, packet)
        refused += not expected
        network.node.run("conntrack", "-F")
        found = await network.reaches(packet.source, packet.destination, packet.protocol, packet.port, counted)
        if found != expected:
            wrong.append((seed, packet, expected))

    assert wrong == []
    assert refused > CASES // 6
