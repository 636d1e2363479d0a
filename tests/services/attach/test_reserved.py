# SPDX-License-Identifier: Apache-2.0
"""SVN-51: whose addresses no Service may take."""

from ipaddress import ip_address
from pathlib import Path

import pytest

from agent.drivers.interfaces.resolvers import resolvers
from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.kubeconfig import find_access
from agent.services.attach.addresses import reserved_now
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import API_SERVER, ServiceInputs
from tests.fakes.clock import FakeClock
from tests.services.making import make_slice


def packed(text: str) -> bytes:
    return ip_address(text).packed


def test_name_servers_of_this_host_by_its_files(tmp_path: Path) -> None:
    """Also those behind a local one; what is no address names nobody."""
    file, behind = tmp_path / "resolv.conf", tmp_path / "behind"
    file.write_text("# a comment\nsearch nameserver\nnameserver 127.0.0.53\nnameserver\nnameserver fe80::1%eth0\n")
    behind.write_text("nameserver 192.0.2.53 # near\nnameserver wrong\n")

    found = tuple(resolvers((file, behind, tmp_path / "absent")))

    assert found == (packed("127.0.0.53"), packed("fe80::1"), packed("192.0.2.53"))


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        (("https://203.0.113.6:6443",), {"203.0.113.6"}),
        (("https://203.0.113.6:6443", "https://[2001:db8::6]:6443/base"), {"203.0.113.6", "2001:db8::6"}),
        (("https://localhost:6443",), {"127.0.0.1"}),
        (("https://nowhere.invalid:6443",), set()),
        ((), set()),
    ],
)
async def test_the_api_servers_by_the_urls_that_may_be_asked(servers: tuple[str, ...], expected: set[str]) -> None:
    found = {one for one, whose in (await reserved_now(servers)).items() if whose == API_SERVER}

    assert found >= set(map(packed, expected))
    assert bool(found) == bool(expected)


def test_those_that_the_kubeconfig_names_count_beside_those_that_are_asked(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: 'https://a:6443'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
    )
    access = find_access(str(file), ["https://b:6443", "https://c:6443"], {})
    assert access is not None

    assert KubeClient(access, clock=FakeClock()).servers == ("https://b:6443", "https://c:6443", "https://a:6443")


def test_endpoints_of_the_kubernetes_service_are_the_api_servers() -> None:
    """Whatever the slices are called; what was theirs is free again when it goes."""
    intake = ServiceInputs(NodeSettings(node="here"), tell=lambda _: None, started_s=0.0)

    def taken() -> set[bytes]:
        return {one for one, whose in intake.facts("IPv4").node.limits.reserved if whose == API_SERVER}

    intake.put_slice(make_slice(["172.31.5.1", "172.31.5.2"], service="kubernetes", namespace="default"))
    intake.put_slice(make_slice(["172.31.5.9"], service="kubernetes", namespace="tenant"))
    assert taken() == {packed("172.31.5.1"), packed("172.31.5.2")}
    intake.put_slice(make_slice(["2001:db8::1"], service="kubernetes", namespace="default", name="other"))
    intake.drop_slice("default", "kubernetes-1")
    assert taken() == {packed("2001:db8::1")}
