# SPDX-License-Identifier: Apache-2.0
"""Which rules of others count as another program for Services, on a real kernel."""

import pytest

from agent.drivers.iptables.driver import IptablesTables
from agent.drivers.nft.driver import NftTable
from tests.lab.namespace import Namespace

pytestmark = pytest.mark.node

# As Cilium writes them on every node, whoever has the Services there.
CILIUM = """*nat
:CILIUM_PRE_nat - [0:0]
:CILIUM_OUTPUT_nat - [0:0]
:CILIUM_POST_nat - [0:0]
-A PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_nat" -j CILIUM_PRE_nat
-A POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
-A CILIUM_POST_nat -s 10.244.0.0/24 ! -d 10.244.0.0/24 ! -o cilium_+ -j MASQUERADE
COMMIT
"""
EMPTY = "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"
SERVING = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-X - [0:0]\n-A KUBE-SERVICES -d 10.96.0.1 -j KUBE-SVC-X\nCOMMIT\n"
TABLE = """table ip kube-proxy {
  map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain services { RULE }
}
"""


@pytest.mark.parametrize(("text", "expected"), [(CILIUM, 0), (EMPTY, 0), (SERVING, 1)], ids=["cilium", "empty", "full"])
async def test_chains_count_by_what_their_rules_do(node: Namespace, table: NftTable, text: str, expected: int) -> None:
    """FS-5, DS-14: by both ways of looking; kepd programmed nothing on nodes with an ordinary Cilium."""
    node.run("iptables-nft-restore", "--noflush", text=text)
    chains = IptablesTables("IPv4", prefix=node.command(), variant="nft", legacy_tables=lambda _: "")

    assert len(await table.rivals()) == expected
    assert len(await chains.rivals()) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("", []), ("ip daddr . meta l4proto . th dport vmap @service-ips", ["table kube-proxy of kube-proxy"])],
)
async def test_a_table_of_kube_proxy_counts_once_it_has_rules(
    node: Namespace, table: NftTable, rule: str, expected: list[str]
) -> None:
    """FS-5, DS-14."""
    node.run("nft", "-f", "-", text=TABLE.replace("RULE", f"{rule}\n" if rule else ""))

    assert list(await table.rivals()) == expected


DROPPING = """*filter
:FORWARD DROP [0:0]
COMMIT
"""
OUR_OWN = "table ip kepd { chain forwarded { type filter hook forward priority 0; policy drop; }; }\n"
OPEN = "table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept; }; }\n"
CLOSED = "table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }\n"


async def test_what_drops_forwarded_packets_is_found(node: Namespace, table: NftTable) -> None:
    """TY-18: an accept of ours cannot override it; what lets packets pass and what is ours does not count."""
    node.run("nft", "-f", "-", text=OUR_OWN + OPEN)
    before = list(await table.forward_drops())
    node.run("nft", "-f", "-", text=CLOSED)
    node.run("iptables-nft-restore", "--noflush", text=DROPPING)

    assert before == []
    assert sorted(await table.forward_drops()) == ["chain FORWARD of table filter", "chain forward of table filter"]
