# SPDX-License-Identifier: Apache-2.0
"""What CDI ids come to on a runtime: the ids themselves, or what they stand for."""

from collections.abc import Callable

from agent.model.clock import Clock
from agent.model.devices.container_devices import NO_DEVICES, ContainerDevices
from agent.model.devices.problem import DevicesNotReady
from agent.model.runtime.features import RuntimeFeatures
from kepd_devices.cdi.merging import CannotMerge, Catalogue, NotResolved, check_seen, merge, nodes_of
from kepd_devices.ports import CdiPlace
from kepd_devices.run.known_devices import ManagerSettings

NOT_SUPPORTED = "CDINotSupported"
CDI_WAIT_S, CDI_LOOK_S = 2.0, 0.2


class ResolvedCdi:
    def __init__(self, cdi: CdiPlace, clock: Clock, settings: Callable[[], ManagerSettings]) -> None:
        self._cdi = cdi
        self._clock = clock
        self._settings = settings

    async def resolved(self, ids: list[str], runtime: RuntimeFeatures) -> ContainerDevices:
        """What CDI ids come to on this runtime. Raises DevicesNotReady."""
        try:
            return await self._merged(ids, runtime)
        except CannotMerge as error:
            raise DevicesNotReady(NOT_SUPPORTED, str(error)) from error

    async def _merged(self, ids: list[str], runtime: RuntimeFeatures) -> ContainerDevices:
        """Either ids or what they stand for."""
        if not ids:
            return NO_DEVICES
        catalogue = await self._with_all(ids)
        resolved = [catalogue.resolve(one) for one in ids]
        if runtime.has_cdi and not self._settings().always_merges:
            check_seen(resolved, runtime.cdi_directories)
            return ContainerDevices(cdi_ids=tuple(ids))
        host = await self._cdi.nodes(nodes_of(resolved))
        return merge(resolved, host, self._settings().private)

    async def _with_all(self, ids: list[str]) -> Catalogue:
        """Drivers write late: what is not there is waited for, a little."""
        until_s = self._clock.now_s() + CDI_WAIT_S
        while True:
            catalogue = await self._cdi.catalogue()
            try:
                for one in ids:
                    catalogue.resolve(one)
            except NotResolved:
                if self._clock.now_s() >= until_s:
                    raise
                await self._clock.sleep(CDI_LOOK_S)
            else:
                return catalogue
