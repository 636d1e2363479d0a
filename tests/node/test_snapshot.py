# SPDX-License-Identifier: Apache-2.0
"""A whole kepd that boots while the API server is away: it begins with the Services that it knew (SVN-25)."""

import asyncio
from pathlib import Path

import pytest

from agent.services.nftables.guard import guard_text, guarded_in
from tests.drivers.kube.api_server import serving
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.following import service
from tests.lab.namespace import Namespace
from tests.lab.network import Network
from tests.node.test_startup_taint import OTHER, daemon, put_node, until

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

OLD, STAYS, FRESH = "10.96.0.10", "10.96.0.11", "10.96.0.12"


def test_a_boot_without_an_api_server_has_the_services_that_were_known(short_path: Path) -> None:
    with Network(pods=1, far_pods=0) as network:
        space = network.node.namespace
        network.node.caller.run(lambda: asyncio.run(scenario(short_path, space)), 100.0)


async def scenario(folder: Path, space: Namespace) -> None:
    certificates = make_certificates(folder)
    async with serving(certificates) as server:
        put_node(server, OTHER)
        for name, address in (("old", OLD), ("stays", STAYS)):
            server.objects.put("services", service(name, clusterIP=address))
        with daemon(folder, space, server.url, str(certificates.ca), "snapshot: true") as kepd:
            await asyncio.to_thread(kepd.start, "--planes", "services")
            await until(lambda: STAYS in rules(space))
            await asyncio.to_thread(kepd.end)
            assert (folder / "state" / "services" / "snapshot.bin").stat().st_mode & 0o777 == 0o600

            # A boot: no rules but the guard's, and nobody answers.
            await asyncio.to_thread(space.run, "nft", "flush", "ruleset")
            await asyncio.to_thread(
                space.run, "nft", "-f", "-", text=guard_text("IPv4", guarded_in("10.96.0.0/16 timeout 1s"), 300)
            )
            await server.refuse()
            server.objects.delete("services", "default", "old")
            server.objects.put("services", service("fresh", clusterIP=FRESH))
            await asyncio.to_thread(kepd.start, "--planes", "services")
            await until(lambda: OLD in rules(space) and STAYS in rules(space))
            await until(lambda: "kepd_guard" not in space.run("nft", "list", "tables"))
            told = await asyncio.to_thread(kepd.ctl, "explain", "route", "default/stays")
            assert "from the snapshot of an earlier kepd" in told.stdout, told

            await server.accept()
            await until(lambda: FRESH in rules(space) and OLD not in rules(space))
            assert STAYS in rules(space)
            await until(lambda: "from the snapshot" not in kepd.ctl("explain", "route", "default/stays").stdout)


def rules(space: Namespace) -> str:
    is_there = "table ip kepd\n" in space.run("nft", "list", "tables")
    return space.run("nft", "list", "table", "ip", "kepd") if is_there else ""
