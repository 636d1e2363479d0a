# SPDX-License-Identifier: Apache-2.0
"""Ending connections put together (SVN-1)."""

from collections.abc import Awaitable, Callable, Iterable

from agent.config.document import Configuration
from agent.drivers.host_sockets.driver import HostSockets
from agent.model.clock import Clock
from agent.services.objects.options import read_ending
from agent.services.ports import Flows
from agent.services.run.connection_ender import ConnectionEnder, EndingSettings
from agent.services.run.plane import ServicesPlane


def make_ender(
    plane: ServicesPlane,
    flows: Flows,
    clock: Clock,
    current: Callable[[], Configuration],
    addresses: Callable[[], Awaitable[Iterable[bytes]]],
) -> ConnectionEnder:
    return ConnectionEnder(
        plane,
        flows,
        HostSockets(),
        clock,
        settings=lambda: ending_settings(current()),
        addresses=addresses,
    )


def ending_settings(configuration: Configuration) -> EndingSettings:
    services = configuration.services
    return EndingSettings(read_ending(services.terminate_established), services.terminate_max)
