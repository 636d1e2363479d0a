# SPDX-License-Identifier: Apache-2.0
"""What devices there are: slices and classes of drivers and of manifests, and which pools give nothing."""

from collections.abc import Callable, Mapping, Sequence
from operator import is_

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.event import Event
from agent.model.finding import printable
from kepd_devices.manifest.objects import DeviceClass, Slice
from kepd_devices.manifest.reading import NO_OBJECTS, DeviceObjects
from kepd_devices.plan.pace import SlicePace
from kepd_devices.plan.pools import PoolNode, gather
from kepd_devices.ports import DeviceDriver

log = structlog.get_logger(plane="devices")


class ManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    node: PoolNode
    boot_id: str = ""
    call_limit_s: float = 45.0
    admin_namespaces: tuple[str, ...] = ()
    always_merges: bool = False
    # Places of the host that no container may see.
    private: tuple[str, ...] = ()


class KnownDevices:
    def __init__(
        self,
        clock: Clock,
        settings: Callable[[], ManagerSettings],
        tell: Callable[[Event], None],
        changed: Callable[[], None],
    ) -> None:
        """`changed`: called when what pods wait for may be there."""
        self._clock = clock
        self._settings = settings
        self._tell = tell
        self.changed = changed
        self._has_read = False
        self._objects = NO_OBJECTS
        self._drivers: dict[str, DeviceDriver] = {}
        # Slices that drivers publish by other ways than a call.
        self.publishers: list[Callable[[], Sequence[Slice]]] = []
        self._pace = SlicePace()
        # Whether a driver is away for so long that its slices do not count.
        self.has_left: Callable[[str], bool] = lambda _driver: False
        # Why pools give nothing, by their names.
        self.invalid_pools: dict[str, str] = {}
        self._looked_at: tuple[Slice, ...] = ()

    def take(self, objects: DeviceObjects) -> None:
        """What the manifests say now."""
        self._objects = objects
        self._has_read = True
        self.changed()

    def add_driver(self, driver: DeviceDriver) -> None:
        self._drivers[driver.name] = driver
        self.changed()

    @property
    def node(self) -> PoolNode:
        return self._settings().node

    @property
    def drivers(self) -> Mapping[str, DeviceDriver]:
        return self._drivers

    @property
    def objects(self) -> DeviceObjects:
        return self._objects

    def slices(self) -> tuple[Slice, ...]:
        """Of drivers that are there, or were a moment ago."""
        return tuple(one for one in self._published() if not self.has_left(one.spec.driver))

    def _published(self) -> tuple[Slice, ...]:
        """Of drivers, and of files; a pool that a driver publishes is its own."""
        published = [one for driver in self._drivers.values() for one in driver.slices()]
        published += self._paced()
        pools = {(one.spec.driver, one.spec.pool.name) for one in published}
        from_files = [one for one in self._objects.slices if (one.spec.driver, one.spec.pool.name) not in pools]
        return (*published, *from_files)

    def _paced(self) -> list[Slice]:
        given = (one for publish in self.publishers for one in publish())
        found, changes = self._pace.paced(given, self._clock.now_s())
        for one in changes:
            log.info("slices_delayed" if one.is_flood else "slices_in_time", driver=one.pool[0], pool=one.pool[1])
            if one.is_flood:
                text = printable(str(one))
                self._tell(Event(is_warning=True, reason="SlicesDelayed", message=text, plane="devices"))
        return found

    def catch_up(self) -> bool:
        """Now and then: what was held back may count by now. Whether anything was."""
        if not self._pace.is_behind:
            return False
        self._paced()
        self.changed()
        return True

    def look_at_pools(self) -> bool:
        """Reports each fault of a pool that gives no devices, once. Returns whether any slice changed."""
        slices = self.slices()
        if len(slices) == len(self._looked_at) and all(map(is_, slices, self._looked_at)):
            return False
        self._looked_at = slices
        before = self.invalid_pools
        self.invalid_pools = {str(one): one.invalid for one in gather(slices, self.node) if one.invalid}
        for name, why in sorted(self.invalid_pools.items() - before.items()):
            text = printable(f"pool {name} gives no devices, for it is invalid: {why}")
            self._tell(Event(is_warning=True, reason="PoolInvalid", message=text, plane="devices"))
        return before != self.invalid_pools

    def classes(self) -> Mapping[str, DeviceClass]:
        own = {one.metadata.name: one for driver in self._drivers.values() for one in driver.classes()}
        return {**own, **self._objects.classes}
