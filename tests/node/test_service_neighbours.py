# SPDX-License-Identifier: Apache-2.0
"""Beside another proxy: its Services lie in the same network as ours, and both go on answering."""

import re
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from agent.model.services.nft_table import Family
from agent.services.nftables.structure import structure_text
from agent.services.run import nft_ruleset
from agent.services.run.nft_ruleset import NftRuleset
from tests.lab.network import POD_RANGES, PORT, Network
from tests.node.neighbour_rules import CHAINS, FIREWALLD
from tests.node.test_services import SHORT_S, WITHIN_S, Cluster, off_loop, served

pytestmark = pytest.mark.node

RANGES = {"IPv4": "10.96.0.0/16", "IPv6": "fd00:96::/64"}
NEIGHBOURS = {"IPv4": "10.96.0.77", "IPv6": "fd00:96::4d"}
STRANGERS = {"IPv4": "10.96.77.7", "IPv6": "fd00:96::77"}
PLACES = ("pod1", "client", "node")
OWN_TABLES = ("table ip kepd", "table ip6 kepd")


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["nftables", "iptables-nft"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def cluster(network: Network, family: Family, backend: str) -> AsyncIterator[Cluster]:
    made = Cluster(family, network, backend)
    made.intake.set_service_ranges([RANGES[family]])
    async with served(made, network):
        yield made


def load_neighbour(cluster: Cluster, priority: int) -> None:
    """A Service as another proxy has it: translated to `pod2` at this priority."""
    ip = "ip" if cluster.family == "IPv4" else "ip6"
    target = cluster.address("pod2") if ip == "ip" else f"[{cluster.address('pod2')}]"
    rule = f"{ip} daddr {NEIGHBOURS[cluster.family]} meta l4proto {{ tcp, udp }} th dport 80 dnat to {target}:{PORT}"
    chains = "".join(
        f"chain {hook} {{ type nat hook {hook} priority {priority}; {rule}\n }}\n" for hook in ("prerouting", "output")
    )
    # Who is no pod needs the node's address for the way back.
    theirs = f"ct original {ip} daddr {NEIGHBOURS[cluster.family]}"
    back = f"chain back {{ type nat hook postrouting priority 100; {theirs} masquerade\n }}"
    cluster.network.node.namespace.run("nft", "-f", "-", text=f"table {ip} neighbour {{\n{chains}{back}\n}}\n")


@pytest.mark.parametrize("priority", [-101, -100, -99])
async def test_a_neighbours_service_goes_on_answering(cluster: Cluster, priority: int) -> None:
    """FS-1: whether its chains come before ours or after."""
    load_neighbour(cluster, priority)
    address = NEIGHBOURS[cluster.family]
    before = {place: cluster.connect(place, address).server for place in PLACES}
    await cluster.put("pod1")
    after = {
        (place, protocol): cluster.connect(place, address, protocol=protocol, wait_s=1.0).server
        for place in PLACES
        for protocol in ("TCP", "UDP")
    }
    own = {place: cluster.connect(place).server for place in PLACES}

    assert before == dict.fromkeys(PLACES, "pod2")
    assert set(after.values()) == {"pod2"}, after
    assert own == dict.fromkeys(PLACES, "pod1")


def load_rules_of(cluster: Cluster, name: str) -> None:
    """As the program `name` leaves them; node ports are let through, where it would close them."""
    node = cluster.network.node.namespace
    if name == "firewalld":
        node.run("nft", "-f", "-", text=FIREWALLD)
        return
    program, icmp = ("iptables", "icmp") if cluster.family == "IPv4" else ("ip6tables", "ipv6-icmp")
    text = CHAINS[name].format(pods=POD_RANGES[cluster.family], icmp=icmp)
    node.run(f"{program}-nft-restore", "--noflush", text=text)


def rules_of_others(cluster: Cluster) -> list[str]:
    """All but ours; counters aside."""
    text = re.sub(r"counter packets \d+ bytes \d+ ?", "", cluster.network.node.namespace.run("nft", "list", "ruleset"))
    tables = [one for one in re.split(r"(?m)^(?=table )", text) if one and not one.startswith(OWN_TABLES)]
    return [line for table in tables for line in table.splitlines() if "KUBE-" not in line and "kepd" not in line]


@pytest.mark.parametrize("name", [*CHAINS, "firewalld"])
async def test_beside_the_rules_of_others_all_answer_and_theirs_stay(cluster: Cluster, name: str) -> None:
    """FS-1, FS-5, TY-18: from pods, from outside and from the node; nobody is taken for a rival."""
    load_rules_of(cluster, name)
    before = rules_of_others(cluster)
    await cluster.put("pod1", "pod2")
    seen = {place: cluster.connect(place).server for place in PLACES}
    after = rules_of_others(cluster)
    rivals = await cluster.rules.rivals()
    cluster.network.node.namespace.run("nft", "flush", "ruleset")

    assert set(seen.values()) <= {"pod1", "pod2"}, seen
    assert [line for line in before if line not in after] == []
    assert rivals == []


async def test_an_address_that_no_proxy_has_is_still_refused(cluster: Cluster) -> None:
    """FS-1, TY-16: from wherever; iptables leaves it to the routes."""
    load_neighbour(cluster, -100)
    await cluster.put("pod1")
    address = STRANGERS[cluster.family]
    silences = {"timeout", "unreachable"} if cluster.leaves_strangers_alone else {"timeout"}
    seen = {place: cluster.silence(place, address) for place in PLACES}
    other_port = {place: cluster.connect(place, port=4711, wait_s=SHORT_S).outcome for place in PLACES}

    assert set(seen.values()) <= silences, seen
    assert set(other_port.values()) <= silences | {"refused"}
    assert cluster.leaves_strangers_alone or set(other_port.values()) == {"refused"}


async def test_without_endpoints_a_service_may_let_traffic_pass(cluster: Cluster) -> None:
    """FS-12: wherever the routes lead, also within the Service network; a port that it does not have is refused."""
    await cluster.put(meta={"annotations": {"kepd.dev/no-endpoints": "pass"}})
    seen = {place: cluster.silence(place) for place in PLACES}
    other_port = {cluster.connect(place, port=4711, wait_s=SHORT_S).outcome for place in PLACES}

    assert set(seen.values()) <= {"timeout", "unreachable"}, seen
    assert other_port == {"refused"} or cluster.leaves_strangers_alone


def earlier_structure(text: str) -> str:
    """The table as kepd made it at first: what nobody serves was refused before translation."""
    for name in ("forwarded", "sent", "unserved"):
        text = re.sub(rf"  chain {name} {{\n.*?\n  }}\n", "", text, flags=re.DOTALL)
    ip = "ip6" if "table ip6" in text else "ip"
    dispatch = text.index("  chain dispatch {")
    end = text.index("  }\n", dispatch)
    return f"{text[:end]}    {ip} daddr @cluster_ips goto rj\n    {ip} daddr @svc_cidrs drop\n{text[end:]}"


class Load(threading.Thread):
    """Connects from a pod until it is ended; `lost` are those without an answer."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.ended = threading.Event()
        self.answered = 0
        self.lost: list[str] = []

    def run(self) -> None:
        while not self.ended.is_set():
            reply = self._cluster.connect("pod3")
            if reply.server == "pod1":
                self.answered += 1
            else:
                self.lost.append(reply.outcome)


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Load]:
    made = Load(cluster)
    yield made
    made.ended.set()
    made.join(WITHIN_S)


@pytest.mark.parametrize("backend", ["nftables"], indirect=True)
async def test_a_table_of_an_earlier_version_is_replaced_without_losing_a_connection(
    cluster: Cluster, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FS-1, NF-9, NF-10: its rules go while connections come, and the neighbour answers from then on."""
    load_neighbour(cluster, -99)
    with monkeypatch.context() as patched:
        patched.setattr(nft_ruleset, "structure_text", lambda settings: earlier_structure(structure_text(settings)))
        await cluster.put("pod1")
    refused = cluster.silence("client", NEIGHBOURS[cluster.family])
    load.start()
    await cluster.until(lambda: load.answered > 0)
    rules = cluster.rules
    assert isinstance(rules, NftRuleset)

    cluster.plane.families[cluster.family].disturbed("a newer kepd looks at the table")
    await cluster.settled()
    seen = load.answered
    await cluster.until(lambda: load.answered > seen)
    load.ended.set()
    await off_loop(load.join)
    state = await rules.table.read()

    assert state is not None
    assert "unserved" in state.chains
    assert refused == "timeout"
    assert load.lost == []
    assert cluster.connect("client", NEIGHBOURS[cluster.family]).server == "pod2"
