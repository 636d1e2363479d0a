# SPDX-License-Identifier: Apache-2.0
"""Ending connections put together, and the file of ways into Services that want it (SVN-5).

The file is for a process that comes after a kill: a Service that goes while no kepd runs, or in the moment in which one
is killed, has no annotation left to read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from agent.config.document import Configuration
from agent.drivers.host_sockets.driver import HostSockets
from agent.drivers.state_files.driver import write_file
from agent.model.clock import Clock
from agent.model.flow import FlowTarget
from agent.model.nft_table import Family
from agent.services.objects.options import read_ending
from agent.services.ports import Flows
from agent.services.run.connection_ender import ConnectionEnder, EndingSettings, Kept
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

ENDINGS_FILE = Path("services", "endings.json")
_ADDRESS_BYTES = (0, 4, 16)


def make_ender(
    plane: ServicesPlane,
    flows: Flows,
    clock: Clock,
    current: Callable[[], Configuration],
    addresses: Callable[[], Awaitable[Iterable[bytes]]],
) -> ConnectionEnder:
    file = Path(current().node.state_directory) / ENDINGS_FILE
    return ConnectionEnder(
        plane,
        flows,
        HostSockets(),
        clock,
        settings=lambda: ending_settings(current()),
        addresses=addresses,
        memory=EndingsFile(file),
    )


def ending_settings(configuration: Configuration) -> EndingSettings:
    services = configuration.services
    return EndingSettings(read_ending(services.terminate_established), services.terminate_max)


class KeptEnding(msgspec.Struct, array_like=True, frozen=True):
    family: Family
    address: str
    port: int
    wait_s: int


class EndingsFile:
    """Read once: what is written later is our own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: Kept | None = None

    def read(self) -> Kept:
        if self._found is None:
            self._found = self._read()
        return self._found

    def _read(self) -> Kept:
        found: dict[Family, dict[FlowTarget, int]] = {}
        try:
            rows = msgspec.json.decode(self._file.read_bytes(), type=list[KeptEnding])
            for one in rows:
                address = bytes.fromhex(one.address)
                if len(address) in _ADDRESS_BYTES:
                    found.setdefault(one.family, {})[FlowTarget(address, "TCP", one.port)] = one.wait_s
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, msgspec.DecodeError) as error:
            effect = "connections to Services that went meanwhile stay"
            log.warning("endings_file_unreadable", path=str(self._file), error=str(error), effect=effect)
        return found

    async def write(self, kept: Kept) -> None:
        rows = [
            KeptEnding(family, target.address.hex(), target.port, wait_s)
            for family, targets in kept.items()
            for target, wait_s in sorted(targets.items())
        ]
        if rows:
            await asyncio.to_thread(write_file, self._file, msgspec.json.encode(rows))
        else:
            await asyncio.to_thread(self._file.unlink, missing_ok=True)
