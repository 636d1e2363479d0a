# SPDX-License-Identifier: Apache-2.0
"""The container runtime, for the planes that work with one. gRPC is imported with this module and not before."""

from collections.abc import Callable

from agent.config.document import RuntimeSection
from agent.drivers.containerd.driver import Containerd
from agent.drivers.cri.driver import CriRuntime
from agent.kit.runtime_events import RuntimeEvents
from agent.kit.runtime_watch import RuntimeWatch
from agent.model.clock import Clock


class Runtime:
    """`observe` hears (method, code, seconds) of every call by CRI, `observe_other` of those to containerd itself."""

    def __init__(
        self,
        settings: RuntimeSection,
        clock: Clock,
        observe: Callable[[str, str, float], None],
        observe_other: Callable[[str, str, float], None],
    ) -> None:
        endpoint = settings.endpoint
        self.cri = CriRuntime(
            endpoint, settings.image_endpoint, request_timeout_s=settings.request_timeout, observe=observe
        )
        self.containerd = Containerd(endpoint, settings.containerd_namespace, observe=observe_other)
        self.watch = RuntimeWatch(self.cri, endpoint, clock.now_s)
        self.events = RuntimeEvents(self.cri, self.containerd, self.watch, clock)

    async def close(self) -> None:
        await self.cri.close()
        await self.containerd.close()
