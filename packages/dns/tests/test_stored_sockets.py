# SPDX-License-Identifier: Apache-2.0
"""Sockets that the process opens and a service manager keeps for the next one."""

import asyncio
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path

from packages.dns.tests.dns_servers import addresses, ask
from packages.dns.tests.messages import ask as question
from packages.dns.tests.test_process import HERE, WITHIN_S, running

FURTHER = "127.0.0.7"


class Manager:
    """What a service manager hears, and what it keeps by its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: dict[str, socket.socket] = {}
        self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._heard.bind(str(path))
        self._heard.setblocking(False)

    def hear(self) -> None:
        with suppress(BlockingIOError):
            while True:
                data, numbers, _, _ = socket.recv_fds(self._heard, 4096, 4)
                fields = dict(line.partition("=")[::2] for line in data.decode().splitlines())
                for number in numbers:
                    self.kept[fields["FDNAME"]] = socket.socket(fileno=number)
                if fields.get("FDSTOREREMOVE"):
                    self.kept.pop(fields["FDNAME"]).close()

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(WITHIN_S):
            while sorted(self.kept) != sorted(names):
                self.hear()
                await asyncio.sleep(0.02)

    def close(self) -> None:
        for one in (*self.kept.values(), self._heard):
            one.close()


async def test_a_socket_of_a_further_address_waits_for_the_next_process(tmp_path: Path) -> None:
    """DNS-11, DNS-13: what comes between two processes is answered by the second, which lets go of the socket when
    the address is no longer one of ours."""
    manager = Manager(tmp_path / "n")
    async with running(tmp_path) as process:
        process.end()
        process.environment = {"NOTIFY_SOCKET": str(manager.path)}
        await process.start()
        await process.set(addresses=(HERE, FURTHER))
        await manager.until(f"udp-{FURTHER}", f"tcp-{FURTHER}")
        process.end()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(WITHIN_S)
            asking.sendto(question("localhost"), (FURTHER, process.port))
            process.held = list(manager.kept.values())
            process.environment["LISTEN_FDNAMES"] = ":".join(manager.kept)
            await process.start()
            late = await asyncio.to_thread(asking.recv, 4096)
        log = (tmp_path / "log").read_text()
        await process.set(addresses=(HERE,))
        await manager.until()
        gone = await asyncio.to_thread(partial(ask, None, FURTHER, "localhost", port=process.port, within_s=0.3))

        assert late[:2] == question("localhost")[:2]
        assert "address_not_bound" not in log
        assert gone is None
        assert addresses(await process.ask("localhost")) == ["127.0.0.1"]
    manager.close()
