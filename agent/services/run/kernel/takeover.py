# SPDX-License-Identifier: Apache-2.0
"""Taking the place of a kube-proxy whose rules are still in the kernel.

The request is a file in the state directory, so that a restart in the middle goes on. Our rules go in, then
kube-proxy's out, then the request is done.
Never: begins by itself, or beside a kube-proxy that runs: both would write the same Services.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from agent.drivers.nft.driver import NftTable
from agent.drivers.node_programs import status_of
from agent.model.services.nft_table import Family
from agent.services.run.kernel.leftovers import kube_proxys_leftovers

log = structlog.get_logger(plane="services")

REQUEST = Path("services", "takeover")
PROGRAM = "kube-proxy"
CAP_NET_ADMIN = 1 << 12


def running_kube_proxies(proc: Path = Path("/proc")) -> list[int]:
    """Those that can write rules here; a pod may call any of its own processes so."""
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            if (folder / "comm").read_text("utf-8", "replace").strip() == PROGRAM and _writes_rules(folder, proc):
                found.append(int(folder.name))
    return sorted(found)


def _writes_rules(folder: Path, proc: Path) -> bool:
    """Whether it may administer this network. One whose network cannot be looked at is taken for one of ours."""
    if not int(status_of(folder)["CapEff"][0], 16) & CAP_NET_ADMIN:
        return False
    try:
        return (folder / "ns/net").stat().st_ino == (proc / "self/ns/net").stat().st_ino
    except PermissionError:
        return True


class Takeover:
    def __init__(self, state_directory: Path, running: Callable[[], list[int]] = running_kube_proxies) -> None:
        self._request = state_directory / REQUEST
        self._running = running

    def ask(self) -> None:
        """For the next attempt of the daemon, or for the next daemon."""
        self._request.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._request.touch(mode=0o600)

    def is_asked(self) -> bool:
        """Whether kube-proxy's rules are leftovers that may stand until ours are in."""
        return self._request.exists() and not self._running()

    async def take_away(self, family: Family, tables: Mapping[Family, NftTable]) -> str:
        """After the first sync of the family. What was removed. `tables` are those of all families."""
        if not self.is_asked():
            return ""
        found = await kube_proxys_leftovers(family, tables[family])
        for one in found:
            await one.remove()
        # A family that was synced before the request had nothing in its way, and is not asked again.
        left = [await kube_proxys_leftovers(other, table) for other, table in tables.items()]
        if not any(left):
            self._request.unlink(missing_ok=True)
            log.info("takeover_finished", of=PROGRAM, v=0)
        return " and ".join(f"of kube-proxy: {one.text}" for one in found)
