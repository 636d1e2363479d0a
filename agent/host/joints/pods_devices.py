# SPDX-License-Identifier: Apache-2.0
"""Which pods may hold devices, as the devices plane asks it, and that they hear when devices changed."""

from collections.abc import Collection, Mapping

import msgspec

from agent.host.planes import Planes
from agent.model.devices.container_devices import CLAIMS_NOTE
from agent.model.pods.pod import PodSpec
from agent.pods.run.runner import PodRunner


class PodsWithDevices(msgspec.Struct, frozen=True):
    """Pods that are kept, be it until they have ended, and those that are wanted and may yet begin."""

    planes: Planes

    @property
    def _runner(self) -> PodRunner:
        """The pods plane is attached after that of devices."""
        assert self.planes.pods is not None  # noqa: S101 - nothing runs before all planes are attached
        return self.planes.pods.runner

    async def listed(self) -> None:
        await self._runner.rounds.listed.wait()

    def uids(self) -> Collection[str]:
        return self._runner.keepers.keys() | self._runner.wants.by_uid.keys()

    def noted(self) -> Mapping[str, Collection[str]]:
        found: dict[str, set[str]] = {}
        for keeper in self._runner.keepers.values():
            for one in keeper.run.seen.running:
                if note := one.notes.get(CLAIMS_NOTE):
                    found.setdefault(keeper.run.pod.key, set()).add(note)
        return found

    def pod(self, namespace: str, name: str) -> PodSpec | None:
        return self._runner.wants.by_key.get(f"{namespace}/{name}")

    def devices_changed(self) -> None:
        self._runner.devices_changed()
