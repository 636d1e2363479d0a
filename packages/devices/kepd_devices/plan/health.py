# SPDX-License-Identifier: Apache-2.0
"""What a driver tells of the health of its devices: all of them, then those that changed. What it does not tell again
in the time that it names is not known any more. When it says that it found out is not read, as by a kubelet."""

from collections.abc import Iterable, Iterator

import msgspec

from agent.model.devices.plugin import ToldHealth
from agent.model.event import Event
from kepd_devices.manifest.faults import is_label
from kepd_devices.plan.answers import told
from kepd_devices.plan.reasons import DeviceId
from kepd_devices.plan.records import ClaimRecord

HEALTHY, UNHEALTHY, UNKNOWN = "Healthy", "Unhealthy", "Unknown"
MOST_DEVICES = 4096
# As a kubelet takes it where a driver names no time.
DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S = 30.0, 86_400.0
LONGEST_POOL = 253


class BadHealth(Exception):
    """What a driver tells cannot be used; the text says why."""


class DeviceHealth(msgspec.Struct, frozen=True):
    status: str = UNKNOWN
    message: str = ""
    until_s: float = 0.0


NOT_KNOWN = DeviceHealth()
Key = tuple[str, str]


def unhealthy_event(record: ClaimRecord, device: DeviceId, why: str) -> Event:
    text = f"device {device}, which claim {record.key} has, is unhealthy" + (f": {why}" if why else "")
    metadata = record.claim.metadata
    return Event(
        id="", is_warning=True, reason="DeviceUnhealthy", message=text, plane="devices",
        namespace=metadata.namespace, object_name=metadata.name,
    )  # fmt: skip


class HealthTable:
    """Of one driver, by pool and device. Times are by the clock that only runs."""

    def __init__(self) -> None:
        self._known: dict[Key, DeviceHealth] = {}

    def take(self, devices: Iterable[ToldHealth], now_s: float) -> list[Key]:
        """Which became unhealthy, or well again. Raises BadHealth."""
        read = dict(_read(devices, now_s))
        if len(self._known.keys() | read.keys()) > MOST_DEVICES:
            self.drop_old(now_s)
        if len(self._known.keys() | read.keys()) > MOST_DEVICES:
            raise BadHealth(f"it tells of more than {MOST_DEVICES} devices")
        changed = [
            key for key, one in read.items() if (self.of(key, now_s).status == UNHEALTHY) != (one.status == UNHEALTHY)
        ]
        self._known.update(read)
        return changed

    def of(self, key: Key, now_s: float) -> DeviceHealth:
        found = self._known.get(key, NOT_KNOWN)
        return found if now_s < found.until_s else NOT_KNOWN

    def unhealthy(self, now_s: float) -> Iterator[Key]:
        return (key for key in self._known if self.of(key, now_s).status == UNHEALTHY)

    def drop_old(self, now_s: float) -> None:
        self._known = {key: one for key, one in self._known.items() if now_s < one.until_s}

    def clear(self) -> None:
        self._known.clear()


def _read(devices: Iterable[ToldHealth], now_s: float) -> Iterator[tuple[Key, DeviceHealth]]:
    for one in devices:
        if not is_label(one.device) or not 0 < len(one.pool) <= LONGEST_POOL:
            raise BadHealth(f"it tells of device {told(f'{one.pool}/{one.device}')!r}, which is no name")
        timeout_s = one.timeout_s if 0 < one.timeout_s <= LONGEST_TIMEOUT_S else DEFAULT_TIMEOUT_S
        yield (
            (one.pool, one.device),
            DeviceHealth(one.status, told(one.message) if one.status == UNHEALTHY else "", now_s + timeout_s),
        )
