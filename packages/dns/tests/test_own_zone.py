# SPDX-License-Identifier: Apache-2.0
"""Names without an API server: the examples of the Kubernetes DNS specification 1.1.0, section 2, and what it leaves
open."""

import pytest

from kepd_dns.handover.state import EndpointName, Port, ServiceName
from kepd_dns.wire.names import to_text, to_wire
from kepd_dns.wire.records_text import TYPES, data_text
from kepd_dns.zones.own import OwnZone, faults

KUBERNETES = ServiceName("default", "kubernetes", ("10.3.0.1",), (Port(443, "https"),))
DUAL = ServiceName("default", "dual", ("10.3.0.2", "fd00:3::2"), (Port(53, "dns", "udp"), Port(80)))
HEADLESS = ServiceName(
    "default",
    "headless",
    is_headless=True,
    endpoints=(
        EndpointName("10.3.0.100", "", (Port(443, "https"),)),
        EndpointName("10.3.0.101", "my-pet", (Port(443, "https"),)),
        EndpointName("fd00::7", "", (Port(443, "https"),)),
    ),
)
EXTERNAL = ServiceName("default", "foo", external="www.example.com")
INNER = ServiceName("default", "inner", external="kubernetes.default.svc.cluster.local")


@pytest.fixture
def zone() -> OwnZone:
    made = OwnZone("cluster.local", ("169.254.20.10",), 7)
    for one in (KUBERNETES, DUAL, HEADLESS, EXTERNAL, INNER):
        made.put(one)
    return made


def look(zone: OwnZone, name: str, kind: str = "A") -> tuple[int, list[str]]:
    found = zone.look(to_wire(name), TYPES[kind])
    return found.code, [f"{to_text(one.owner)} {one.ttl} {data_text(one.type, one.data)}" for one in found.answers]


CL = "svc.cluster.local"


@pytest.mark.parametrize(
    ("name", "kind", "records"),
    [
        ("dns-version.cluster.local", "TXT", ["dns-version.cluster.local. 28800 '1.1.0'"]),
        (f"kubernetes.default.{CL}", "A", [f"kubernetes.default.{CL}. 5 10.3.0.1"]),
        (f"kubernetes.default.{CL}", "AAAA", []),
        (f"dual.default.{CL}", "AAAA", [f"dual.default.{CL}. 5 fd00:3::2"]),
        (
            f"_https._tcp.kubernetes.default.{CL}",
            "SRV",
            [f"_https._tcp.kubernetes.default.{CL}. 5 0 100 443 kubernetes.default.{CL}."],
        ),
        (f"_dns._udp.dual.default.{CL}", "SRV", [f"_dns._udp.dual.default.{CL}. 5 0 100 53 dual.default.{CL}."]),
        ("1.0.3.10.in-addr.arpa", "PTR", [f"1.0.3.10.in-addr.arpa. 5 kubernetes.default.{CL}."]),
        (f"headless.default.{CL}", "A", [f"headless.default.{CL}. 5 10.3.0.{one}" for one in (100, 101)]),
        (f"headless.default.{CL}", "AAAA", [f"headless.default.{CL}. 5 fd00::7"]),
        (f"my-pet.headless.default.{CL}", "A", [f"my-pet.headless.default.{CL}. 5 10.3.0.101"]),
        (f"10-3-0-100.headless.default.{CL}", "A", [f"10-3-0-100.headless.default.{CL}. 5 10.3.0.100"]),
        (f"fd00--7.headless.default.{CL}", "AAAA", [f"fd00--7.headless.default.{CL}. 5 fd00::7"]),
        (
            f"_https._tcp.headless.default.{CL}",
            "SRV",
            [
                f"_https._tcp.headless.default.{CL}. 5 0 33 443 {host}.headless.default.{CL}."
                for host in ("10-3-0-100", "my-pet", "fd00--7")
            ],
        ),
        ("101.0.3.10.in-addr.arpa", "PTR", [f"101.0.3.10.in-addr.arpa. 5 my-pet.headless.default.{CL}."]),
        (f"foo.default.{CL}", "A", [f"foo.default.{CL}. 5 www.example.com."]),
        ("cluster.local", "NS", ["cluster.local. 5 ns.dns.cluster.local."]),
        ("ns.dns.cluster.local", "A", ["ns.dns.cluster.local. 5 169.254.20.10"]),
        ("svc.cluster.local", "A", []),
        (f"default.{CL}", "A", []),
        (f"_tcp.kubernetes.default.{CL}", "SRV", []),
    ],
)
def test_each_example_of_the_specification_is_answered(zone: OwnZone, name: str, kind: str, records: list[str]) -> None:
    """DNS-70: the names between, which have no records, exist."""
    assert look(zone, name, kind) == (0, records)


@pytest.mark.parametrize("name", [f"web.default.{CL}", f"web.other.{CL}", f"other.{CL}", "pod.cluster.local"])
def test_every_other_name_of_the_zone_does_not_exist(zone: OwnZone, name: str) -> None:
    """DNS-70: with the SOA that says for how long."""
    found = zone.look(to_wire(name), 1)

    assert found.code == 3
    assert found.authority[0].data[-20:-16] == (7).to_bytes(4, "big")
    assert found.authority[0].data[-4:] == (5).to_bytes(4, "big")


def test_a_chain_is_followed_within_the_zone_and_says_where_it_leaves(zone: OwnZone) -> None:
    """Section 7: ExternalName."""
    inner, outer = zone.look(to_wire(f"inner.default.{CL}"), 1), zone.look(to_wire(f"foo.default.{CL}"), 1)

    assert ([one.type for one in inner.answers], inner.target) == ([5, 1], b"")
    assert to_text(outer.target) == "www.example.com."


def test_a_chain_that_leads_back_ends(zone: OwnZone) -> None:
    """Section 7: what was found is answered."""
    zone.put(ServiceName("default", "a", external=f"b.default.{CL}"))
    zone.put(ServiceName("default", "b", external=f"a.default.{CL}"))

    found = zone.look(to_wire(f"a.default.{CL}"), 1)

    assert (found.code, len(found.answers), found.target) == (0, 2, b"")


def test_a_service_that_goes_takes_its_names_with_it(zone: OwnZone) -> None:
    """DNS-70: also those between, and not those that others still need."""
    zone.put(ServiceName("other", "web", ("10.3.0.9",), (Port(80, "http"),)))
    assert look(zone, f"other.{CL}") == (0, [])
    zone.drop("other/web")
    zone.drop("default/headless")

    codes = [
        look(zone, one)[0] for one in (f"other.{CL}", f"web.other.{CL}", f"default.{CL}", f"headless.default.{CL}")
    ]

    assert codes == [3, 3, 0, 3]
    assert not zone.is_own(to_wire("101.0.3.10.in-addr.arpa"))


def test_a_headless_service_without_ready_endpoints_does_not_exist(zone: OwnZone) -> None:
    zone.put(ServiceName("default", "headless", is_headless=True))

    assert look(zone, f"headless.default.{CL}")[0] == 3


def test_srv_records_bring_addresses_along(zone: OwnZone) -> None:
    found = zone.look(to_wire(f"_dns._udp.dual.default.{CL}"), TYPES["SRV"])

    assert [data_text(one.type, one.data) for one in found.extra] == ["10.3.0.2", "fd00:3::2"]


def test_an_endpoint_twice_is_one_address(zone: OwnZone) -> None:
    """IN-11: slices overlap for a moment."""
    one = EndpointName("10.3.0.100")
    zone.put(ServiceName("default", "headless", is_headless=True, endpoints=(one, one)))

    assert look(zone, f"headless.default.{CL}") == (0, [f"headless.default.{CL}. 5 10.3.0.100"])


def test_names_that_are_none_are_findings_and_break_nothing(zone: OwnZone) -> None:
    """DNS-73."""
    bad = ServiceName("default", "web_1", ("10.3.0.9",))
    port = ServiceName("default", "web", ("10.3.0.9",), (Port(80, "way-too-long-a-name"), Port(81, "http")))
    host = ServiceName(
        "default", "pets", is_headless=True, endpoints=(EndpointName("10.3.0.5", "My_Pet"),), external=""
    )
    for one in (bad, port, host):
        zone.put(one)

    assert [len(list(faults(one))) for one in (bad, port, host)] == [1, 1, 1]
    assert look(zone, f"web.default.{CL}") == (0, [f"web.default.{CL}. 5 10.3.0.9"])
    assert look(zone, f"_http._tcp.web.default.{CL}", "SRV")[1] != []
    assert look(zone, f"10-3-0-5.pets.default.{CL}")[1] == [f"10-3-0-5.pets.default.{CL}. 5 10.3.0.5"]


def test_a_pods_address_has_a_name_where_the_pod_is(zone: OwnZone) -> None:
    """DNS-76: not any address, and not in another namespace."""
    zone.set_pods([("default", "10-is-no-address"), ("default", "10.1.0.7"), ("default", "fd00::9")][1:])
    v6 = "fd00--9.default.pod.cluster.local"

    assert look(zone, "10-1-0-7.default.pod.cluster.local") == (0, ["10-1-0-7.default.pod.cluster.local. 5 10.1.0.7"])
    assert look(zone, v6, "AAAA") == (0, [f"{v6}. 5 fd00::9"])
    assert [look(zone, f"{one}.pod.cluster.local")[0] for one in ("10-1-0-8.default", "10-1-0-7.other")] == [3, 3]
