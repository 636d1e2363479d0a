# SPDX-License-Identifier: Apache-2.0
"""Names as programs find them: by the resolvers of glibc and of musl, with the file that a pod has."""

import asyncio
import subprocess
from functools import partial
from pathlib import Path

import pytest

from agent.model.services.nft_table import Family
from kepd_dns.handover.state import EndpointName, Port, ServiceName
from packages.dns.tests.dns_servers import ScriptedDns
from packages.dns.tests.node.dns_node import ADDRESSES, FAMILIES, DnsNode
from packages.dns.tests.node.test_dns import WEB
from tests.lab.namespace import Namespace
from tests.lab.network import Network

pytestmark = pytest.mark.node

SOURCE = Path(__file__).parent / "resolver.c"
SEARCH = "search default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
# A file in the place of the system's, for this program alone.
INSIDE = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'


@pytest.fixture(params=["glibc", "musl"])
def resolver(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    program = tmp_path / "resolver"
    compiler = ["gcc"] if request.param == "glibc" else ["musl-gcc", "-static"]
    subprocess.run([*compiler, "-o", str(program), str(SOURCE)], check=True)
    return program


def found(place: Namespace, resolver: Path, file: Path, name: str) -> set[str]:
    command = place.command("unshare", "--mount", "sh", "-c", INSIDE, "sh", str(file), str(resolver), name)
    return set(subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.split())


@pytest.mark.parametrize("families", [FAMILIES, ("IPv4",), ("IPv6",)], ids=["both", "IPv4", "IPv6"])
async def test_resolvers_find_what_a_pod_asks_for(
    network: Network, tmp_path: Path, resolver: Path, families: tuple[Family, ...]
) -> None:
    """Section 12: short names and whole ones, headless pods by hostname, ExternalName, names outside, and none; with
    the servers of both families, and of either."""
    pets = ServiceName(
        "default", "pets", is_headless=True, ports=(Port(80, "http"),),
        endpoints=(EndpointName("10.1.0.11", "rex", (Port(8080, "http"),)), EndpointName("10.1.0.12")),
    )  # fmt: skip
    out = ServiceName("default", "out", external="host.example.")
    file = tmp_path / "pod.conf"
    file.write_text("".join(f"nameserver {ADDRESSES[one]}\n" for one in families) + SEARCH)
    web = {"10.96.0.10", "fd00:96::10"}
    wanted = {
        "web": web, "web.default": web, "web.default.svc.cluster.local": web,
        "pets": {"10.1.0.11", "10.1.0.12"}, "rex.pets": {"10.1.0.11"},
        "out": {"203.0.113.5"}, "elsewhere.example": {"203.0.113.5"}, "none.default.svc.cluster.local.": set(),
    }  # fmt: skip
    async with (
        ScriptedDns(network["far1"].v4, "203.0.113.5", network["remote"].namespace),
        DnsNode(network, tmp_path, families=families).running() as dns,
    ):
        (tmp_path / "resolv.conf").write_text(f"nameserver {network['far1'].v4}\n")
        await dns.tell(WEB, pets, out)
        await asyncio.sleep(1.1)
        asked = {
            name: await asyncio.to_thread(partial(found, network["pod1"].namespace, resolver, file, name))
            for name in wanted
        }

        assert asked == wanted
        assert dns.tracked() == []
        assert "error" not in dns.process.log.read_text()
