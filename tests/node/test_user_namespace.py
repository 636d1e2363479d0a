# SPDX-License-Identifier: Apache-2.0
"""FS-8: in a user namespace sockets cannot be made as large as a privileged process makes them."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.driver import NftTable
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.lab.namespace import Namespace
from tests.services.making import make_service, make_slice

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

SERVICES = 10_000
LIMIT_BYTES = 212_992
"""What a kernel gives by default."""


class Limited(socket.socket):
    """Of a process without rights over the first namespace."""

    def setsockopt(self, level: int, option: int, value: int) -> None:  # type: ignore[override]
        forced = (32, 33)
        if level == socket.SOL_SOCKET and option in forced:
            raise PermissionError
        if level == socket.SOL_SOCKET and option == socket.SO_SNDBUF:
            value = min(value, LIMIT_BYTES)
        super().setsockopt(level, option, value)


def limited() -> socket.socket:
    return Limited(fileno=open_socket().detach())


async def first_sync(table: NftTable, services: int, endpoints: int = 2) -> tuple[int, str]:
    """How many are programmed, and what became of the rest."""
    intake = ServiceInputs(NodeSettings(node="n1"), tell=lambda _event: None, started_s=0.0)
    plane = ServicesPlane(intake, {"IPv4": NftRuleset(table)}, clock=SystemClock(), tell=lambda _event: None)
    for number in range(services):
        intake.put_service(
            make_service(f"s{number}", ip=f"10.{96 + number // 65536}.{number // 256 % 256}.{number % 256}")
        )
        addresses = [f"10.1.{number % 250}.{one % 250}" for one in range(1, endpoints + 1)]
        intake.put_slice(make_slice(addresses, service=f"s{number}"))
    await plane.families["IPv4"].sync()
    state = await table.read()
    await table.close()
    aside = "; ".join(plane.families["IPv4"].quarantine.values())
    return len(state.content["services"]) if state is not None else 0, aside


async def test_services_are_written_in_portions_that_the_sockets_take() -> None:
    with Namespace() as node:
        table = NftTable("IPv4", command=node.command("nft"), opens=lambda: node.call(limited))

        assert await first_sync(table, 3000) == (3000, "")


async def test_a_service_too_large_for_the_sockets_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LIMIT_BYTES", 2048)
    with Namespace() as node:
        table = NftTable("IPv4", command=node.command("nft"), opens=lambda: node.call(limited))
        count, aside = await first_sync(table, 1, endpoints=200)

    assert count == 0
    assert "raise net.core.wmem_max" in aside


def test_a_first_sync_in_a_real_user_namespace() -> None:
    done = subprocess.run(
        ["unshare", "-Urn", sys.executable, "-m", "tests.node.test_user_namespace"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip

    assert done.stdout.strip().endswith(str((SERVICES, ""))), done.stdout + done.stderr


if __name__ == "__main__":
    print(asyncio.run(first_sync(NftTable("IPv4"), SERVICES)))
