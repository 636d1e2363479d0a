# SPDX-License-Identifier: Apache-2.0
"""Malformed and contradictory objects: one line each, everything else is programmed, nothing is injected."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.event import Event
from agent.model.kube_objects import EndpointSlice, NodeObject, Service
from agent.model.services.nft_table import Family
from agent.services.objects.node_state import NodeSettings, family_facts, node_sight
from agent.services.objects.reading_service import read_service
from agent.services.objects.reading_slice import read_slice
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import backends_in, make_service, make_slice

HTTP = {"name": "http", "port": 80}


def ports(**fields: Any) -> dict[str, Any]:
    return {"ports": [{**HTTP, **fields}]}


def affinity(timeout_s: int) -> dict[str, Any]:
    return {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": timeout_s}}}


def balancer(entry: dict[str, str]) -> dict[str, Any]:
    return {"type": "LoadBalancer", "status": {"loadBalancer": {"ingress": [entry]}}}


def ranges(*texts: str) -> dict[str, Any]:
    return {"type": "LoadBalancer", "loadBalancerSourceRanges": list(texts)}


def slice_port(**fields: Any) -> dict[str, Any]:
    return {"addresses": ["10.0.0.1"], "ports": [{**HTTP, **fields}]}


TWICE = {"type": "NodePort", "ports": [{**HTTP, "nodePort": 30000}, {"name": "b", "port": 81, "nodePort": 30000}]}

# What is wrong → what is said. The Service is not programmed.
UNUSABLE: list[tuple[str, dict[str, Any], str]] = [
    ("no address", {"ip": "nonsense"}, "'nonsense' is not an address"),
    ("too many octets", {"ip": "10.0.0.0.1"}, "is not an address"),
    ("octet too large", {"ip": "10.0.0.256"}, "is not an address"),
    ("hexadecimal octet", {"ip": "0x0a.0.0.1"}, "is not an address"),
    ("address with a port", {"ip": "10.0.0.1:80"}, "is not an address"),
    ("address with a prefix", {"ip": "10.0.0.1/32"}, "is not an address"),
    ("address with blanks", {"ip": " 10.0.0.1"}, "is not an address"),
    ("two addresses in one", {"ip": "10.0.0.1,10.0.0.2"}, "is not an address"),
    ("nft in an address", {"ip": "10.0.0.1 } ; flush ruleset"}, "is not an address"),
    ("IPv6 with a zone", {"ip": "fe80::1%eth0"}, "is not an address"),
    ("IPv6 with too many colons", {"ip": "fd00::1::2"}, "is not an address"),
    ("fullwidth digits", {"ip": "１０.0.0.1"}, "is not an address"),
    ("loopback", {"ip": "127.0.0.1"}, "is loopback"),
    ("IPv6 loopback", {"ip": "::1"}, "is loopback"),
    ("unspecified", {"ip": "0.0.0.0"}, "is unspecified"),
    ("multicast", {"ip": "224.0.0.1"}, "is multicast"),
    ("IPv6 multicast", {"ip": "ff02::1"}, "is multicast"),
    ("link-local", {"ip": "169.254.10.1"}, "is link-local"),
    ("IPv6 link-local", {"ip": "fe80::1"}, "is link-local"),
    ("broadcast", {"ip": "255.255.255.255"}, "is broadcast"),
    ("second address of one family", {"clusterIPs": ["10.96.0.10", "10.96.0.11"]}, "is a second IPv4 address"),
    ("lists disagree", {"clusterIPs": ["10.96.0.99"]}, "differs from clusterIP"),
    ("bad second address", {"clusterIPs": ["10.96.0.10", "fd00::zz"]}, "'fd00::zz' is not an address"),
    ("family of the other kind", {"ipFamilies": ["IPv6"]}, "is IPv4, but spec.ipFamilies[0] is 'IPv6'"),
    ("unknown family", {"ipFamilies": ["IPv5"]}, "'IPv5' is not known"),
    ("unknown type", {"type": "clusterip"}, 'did you mean "ClusterIP"?'),
    ("empty type", {"type": ""}, "spec.type"),
    ("type with a newline", {"type": "ClusterIP\nflush ruleset"}, "is not known"),
    ("unknown affinity", {"sessionAffinity": "ServerIP"}, "'ServerIP' is not known; expected None, ClientIP"),
    ("unknown external policy", {"externalTrafficPolicy": "local"}, 'did you mean "Local"?'),
    ("unknown internal policy", {"internalTrafficPolicy": "Global"}, "expected Cluster, Local"),
    ("affinity of no time", affinity(0), "is out of range; expected 1 to 86400"),
    ("affinity for ever", affinity(86401), "86401 is out of range"),
    ("negative affinity", affinity(-1), "-1 is out of range"),
    ("no ports", {"ports": []}, "there is none; expected at least one"),
    ("port 0", ports(port=0), "0 is not a port; expected 1 to 65535"),
    ("port too large", ports(port=65536), "65536 is not a port"),
    ("negative port", ports(port=-80), "-80 is not a port"),
    ("node port too large", ports(nodePort=70000), "70000 is not a port"),
    ("negative node port", ports(nodePort=-1), "-1 is not a port"),
    ("unknown protocol", ports(protocol="HTTP"), "'HTTP' is not known; expected TCP, UDP, SCTP"),
    ("protocol in small letters", ports(protocol="tcp"), 'did you mean "TCP"?'),
    ("port name with capitals", ports(name="HTTP"), "'HTTP' is not a port name"),
    ("port name with a blank", ports(name="ht tp"), "is not a port name"),
    ("port name too long", ports(name="a" * 64), "is not a port name"),
    ("nft in a port name", ports(name='a"; flush ruleset; #'), "is not a port name"),
    ("two ports without name", {"ports": [{"port": 80}, {"port": 81}]}, "is not a port name"),
    ("the same name twice", {"ports": [HTTP, {"name": "http", "port": 81}]}, "'http' is also that of spec.ports[0]"),
    ("the same number twice", {"ports": [HTTP, {"name": "b", "port": 80}]}, "80/TCP is also that of spec.ports[0]"),
    ("the same node port twice", TWICE, "30000/TCP is also that of spec.ports[0]"),
    ("health port too large", {"type": "LoadBalancer", "healthCheckNodePort": 65536}, "65536 is not a port"),
    ("negative health port", {"type": "LoadBalancer", "healthCheckNodePort": -5}, "-5 is not a port"),
    ("name with a slash", {"name": "a/b"}, "'a/b' is not a name"),
    ("name with capitals", {"name": "Web"}, "'Web' is not a name"),
    ("empty name", {"name": ""}, "'' is not a name"),
    ("name too long", {"name": "a" * 254}, "is not a name"),
    ("nft in a name", {"name": 'web" ; flush ruleset ; #'}, "is not a name"),
    ("name with an escape", {"name": "web\x1b[2J"}, "is not a name"),
    ("namespace with dots at the end", {"namespace": "shop."}, "'shop.' is not a name"),
    ("no namespace", {"namespace": ""}, "metadata.namespace"),
]  # fmt: skip

# What is wrong → what is said. The Service is programmed without it.
PARTLY: list[tuple[str, dict[str, Any], str]] = [
    ("external address", {"externalIPs": ["nonsense"]}, "spec.externalIPs[0]: 'nonsense' is not an address"),
    ("external loopback", {"externalIPs": ["127.0.0.1"]}, "is loopback; it is left out"),
    ("external multicast", {"externalIPs": ["239.0.0.1"]}, "is multicast"),
    ("external unspecified", {"externalIPs": ["0.0.0.0"]}, "is unspecified"),
    ("external CIDR", {"externalIPs": ["192.0.2.0/24"]}, "is not an address"),
    ("balancer address", balancer({"ip": "x"}), "status.loadBalancer.ingress[0]: 'x' is not an address"),
    ("balancer mode", balancer({"ip": "192.0.2.1", "ipMode": "Direct"}), "'Direct' is not known; expected VIP, Proxy"),
    ("balancer link-local", balancer({"ip": "169.254.1.1"}), "is link-local"),
    ("range without prefix", ranges("192.0.2.1", "192.0.2.0/24"), "'192.0.2.1' is not a CIDR"),
    ("range with too long a prefix", ranges("192.0.2.0/33", "192.0.2.0/24"), "is not a CIDR"),
    ("range with words", ranges("any", "192.0.2.0/24"), "'any' is not a CIDR"),
    ("range with a signed prefix", ranges("10.0.0.0/+8", "192.0.2.0/24"), "is not a CIDR"),
    ("only ranges of the other family", ranges("fd00::/8"), "open to all"),
]  # fmt: skip
ANNOTATIONS: list[tuple[str, str, str]] = [
    ("topology-keys", "", "expected a comma list"),
    ("topology-keys", "a,,b", "expected a comma list"),
    ("topology-keys", "*,a", "* may only be the last key"),
    ("topology-keys", "a,a", "different label keys"),
    ("affinity-clients", "63", "from 64 to 65536"),
    ("affinity-clients", "65537", "from 64 to 65536"),
    ("affinity-clients", "many", "from 64 to 65536"),
    ("topology-min-endpoints", "0", "from 1 to"),
    ("topology-min-endpoints", "two", "from 1 to"),
    ("topology-min-endpoints", "99999", "from 1 to"),
    ("internal-policy", "prefer", "expected prefer-local"),
    ("endpoint-weights", "10.1.0.1", "IP=W"),
    ("endpoint-weights", "10.1.0.1=257", "from 0 to 256"),
    ("endpoint-weights", "10.1.0.1=-1", "IP=W"),
    ("endpoint-weights", "x=1", "'x' is not an address"),
    ("endpoint-weights", "10.1.0.1=1,10.01.0.1=2", "is given twice"),
    ("no-local-verdict", "refuse", "expected reject or drop"),
    ("no-endpoints", "drop", "expected pass"),
    ("source-ranges-everywhere", "yes", "expected true or false"),
    ("terminate-established", "true", "expected never"),
    ("terminate-established", "on-endpoint-removal,soon", "is not a duration"),
    ("terminate-established", "on-endpoint-removal,", "is not a duration"),
    ("terminate-established", "on-endpoint-removal,25h", "at most 24h"),
    ("terminate-established", "never,5s", "expected never"),
    ("balance", "maglev,client", "expected maglev or maglev,source"),
    ("affinity-scope", "service", "this version does not know it"),
]
SLICES: list[tuple[str, dict[str, Any], str]] = [
    ("no address", {"addresses": ["nonsense"]}, "endpoints[0].addresses[0]: 'nonsense' is not an address"),
    ("wrong family", {"addresses": ["fd00::1"], "family": "IPv4"}, "is no IPv4 address"),
    ("mapped address", {"addresses": ["::ffff:10.0.0.1"], "family": "IPv6"}, "is no IPv6 address"),
    ("mapped address in a slice of IPv4", {"addresses": ["::ffff:10.0.0.1"], "family": "IPv4"}, "is no IPv4 address"),
    ("loopback", {"addresses": ["127.0.0.5"]}, "is loopback"),
    ("link-local", {"addresses": ["169.254.0.1"]}, "is link-local"),
    ("multicast", {"addresses": ["224.0.0.9"]}, "is multicast"),
    ("unspecified", {"addresses": ["0.0.0.0"]}, "is unspecified"),
    ("broadcast", {"addresses": ["255.255.255.255"]}, "is broadcast"),
    ("nft in an address", {"addresses": ["10.0.0.1 } ; flush ruleset"]}, "is not an address"),
    ("unknown protocol", slice_port(protocol="QUIC"), "'QUIC' is not known"),
    ("port too large", slice_port(port=99999), "99999 is not a port"),
    ("negative port", slice_port(port=-1), "-1 is not a port"),
    ("unknown kind of address", {"addresses": ["10.0.0.1"], "family": "IPX"}, "'IPX' is not known"),
    ("a thousand bad ones", {"addresses": ["bad"] * 1000}, "995 more like these"),
]  # fmt: skip


def test_the_corpus_is_large_enough() -> None:
    assert len(UNUSABLE) + len(PARTLY) + len(ANNOTATIONS) + len(SLICES) >= 100


@pytest.mark.parametrize(("spec", "said"), [case[1:] for case in UNUSABLE], ids=[case[0] for case in UNUSABLE])
def test_an_unusable_service_is_told_and_left_out(spec: dict[str, Any], said: str) -> None:
    read = make_service(spec.get("name", "web"), **{key: value for key, value in spec.items() if key != "name"})
    text = "; ".join(map(str, read.findings))

    assert read.facts is None
    assert said in text
    assert "the Service is not programmed" in text
    assert text.isprintable()


@pytest.mark.parametrize(("spec", "said"), [case[1:] for case in PARTLY], ids=[case[0] for case in PARTLY])
def test_a_stray_value_costs_itself_alone(spec: dict[str, Any], said: str) -> None:
    read = make_service(**spec)

    assert read.facts is not None
    assert said in "; ".join(map(str, read.findings))


@pytest.mark.parametrize(("name", "value", "said"), ANNOTATIONS)
def test_a_wrong_annotation_is_ignored(name: str, value: str, said: str) -> None:
    read = make_service(meta={"annotations": {f"kepd.dev/{name}": value}})

    assert read.facts is not None
    (finding,) = read.findings
    assert finding.path == f"metadata.annotations[kepd.dev/{name}]"
    assert said in finding.text
    assert finding.text.endswith("the annotation is ignored")


@pytest.mark.parametrize(("given", "said"), [case[1:] for case in SLICES], ids=[case[0] for case in SLICES])
def test_a_bad_endpoint_or_slice_is_told_and_left_out(given: dict[str, Any], said: str) -> None:
    read = make_slice(**given)
    backends = backends_in(read.facts) if read.facts is not None else []

    assert backends == []
    assert said in "; ".join(map(str, read.findings))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("10.030.0.10", "10.30.0.10"), ("010.000.000.001", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1")],
)
def test_lenient_spellings_are_read_as_the_api_means_them(text: str, canonical: str) -> None:
    """IN-13: decimal, never octal."""
    read = make_service(ip=text)
    assert read.facts is not None
    assert read.facts.v4 is not None

    assert read.facts.v4.cluster_ip.text == canonical


async def test_all_bad_ones_together_harm_no_good_one() -> None:
    """One event for each bad object; the good Service among them is in the kernel, and no chain or map but ours."""
    events: list[Event] = []
    kernel = FakeKernel()
    tables: dict[Family, FakeNft] = {family: FakeNft(family, kernel) for family in ("IPv4", "IPv6")}
    clock = FakeClock()
    intake = ServiceInputs(NodeSettings(node="n", addresses=("192.168.0.1",)), tell=events.append, started_s=0.0)
    rulesets = {family: NftRuleset(table) for family, table in tables.items()}
    plane = ServicesPlane(intake, rulesets, clock=clock, tell=events.append)
    intake.put_service(make_service("good", ip="10.96.255.1"))
    intake.put_slice(make_slice(["10.1.0.1"], service="good", name="good-1"))
    for number, (_, spec, _) in enumerate(UNUSABLE):
        wrong = {"namespace": f"ns-{number}", **{key: value for key, value in spec.items() if key != "name"}}
        intake.put_service(make_service(spec.get("name", "web"), **wrong))
    for number, (_, fields, _) in enumerate(SLICES):
        intake.put_slice(make_slice(**{"namespace": f"ns-{number}", "name": f"slice-{number}", **fields}))
    for sync in plane.families.values():
        await sync.sync()

    assert len(kernel.tables["IPv4"].content["services"]) == 1
    assert "IPv6" not in kernel.tables
    assert len(events) == len(UNUSABLE) + len(SLICES)
    assert {event.reason for event in events} == {"InvalidService", "InvalidEndpointSlice"}


NODES: list[dict[str, Any]] = [
    {"status": {"addresses": [{"type": "InternalIP", "address": "nonsense"}]}},
    {"status": {"addresses": [{"type": "Hostname", "address": "10.0.0.1"}]}},
    {"status": {"addresses": None}},
    {"spec": {"podCIDRs": ["10.0.0.0"]}},
    {"spec": {"podCIDRs": ["10.0.0.0/99"]}},
    {"spec": {"podCIDR": "x"}},
    {"metadata": {"name": "n", "labels": None}},
]


@pytest.mark.parametrize("node", NODES)
def test_a_node_with_faults_opens_nothing(node: dict[str, Any]) -> None:
    """TY-3: an address that is not known opens no node port, and a bad CIDR makes nobody a pod."""
    sight = node_sight(msgspec.convert({"metadata": {"name": "n"}, **node}, NodeObject))
    facts = family_facts("IPv4", NodeSettings(node="n"), sight, ())

    assert facts.node.node_port_addresses == ()
    assert not facts.node.is_open_everywhere
    assert facts.node.pod_ranges == ()
    assert facts.table.detection.mode == "none"


texts = st.text(max_size=12) | st.sampled_from(["10.0.0.1", "fd00::1", "None", "", "ClientIP", "Local", "TCP", "::"])
whole = st.integers(-(2**31), 2**31)
service_ports = st.fixed_dictionaries({"port": whole, "name": texts, "protocol": texts, "nodePort": whole})
slice_ports = st.fixed_dictionaries(
    {"name": st.none() | texts, "port": st.none() | whole, "protocol": st.none() | texts}
)


@given(
    st.builds(
        lambda **spec: {"metadata": {"name": "web", "namespace": "shop"}, "spec": spec},
        type=texts, clusterIP=texts, clusterIPs=st.none() | st.lists(texts, max_size=3),
        ipFamilies=st.none() | st.lists(texts, max_size=3), externalIPs=st.none() | st.lists(texts, max_size=3),
        ports=st.none() | st.lists(service_ports, max_size=3),
        sessionAffinity=texts, externalTrafficPolicy=texts, healthCheckNodePort=whole,
        loadBalancerSourceRanges=st.none() | st.lists(texts, max_size=3),
    )
)  # fmt: skip
@settings(deadline=None)
def test_no_service_breaks_the_reader(document: dict[str, Any]) -> None:
    read = read_service(msgspec.convert(document, Service))

    assert read.facts is None or read.facts.ports


@given(st.lists(texts, max_size=4), texts, st.lists(slice_ports, max_size=3))
@settings(deadline=None)
def test_no_slice_breaks_the_reader(addresses: list[str], kind: str, given_ports: list[dict[str, Any]]) -> None:
    document = {
        "metadata": {"name": "s", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": kind,
        "ports": given_ports,
        "endpoints": [{"addresses": [address]} for address in addresses],
    }

    read_slice(msgspec.convert(document, EndpointSlice))
