# SPDX-License-Identifier: Apache-2.0
"""Which pods may hold devices, as the devices plane asks it."""

from collections.abc import Collection, Mapping

import msgspec

from agent.model.container_devices import CLAIMS_NOTE
from agent.pods.run.runner import PodRunner


class PodsWithDevices(msgspec.Struct, frozen=True):
    """Pods that are kept, be it until they have ended, and those that are wanted and may yet begin."""

    runner: PodRunner

    async def listed(self) -> None:
        await self.runner.listed()

    def uids(self) -> Collection[str]:
        return self.runner.keepers.keys() | self.runner.wanted_uids

    def noted(self) -> Mapping[str, Collection[str]]:
        """By pod, what its running containers carry about their claims."""
        found: dict[str, set[str]] = {}
        for keeper in self.runner.keepers.values():
            for one in keeper.run.seen.running:
                if note := one.notes.get(CLAIMS_NOTE):
                    found.setdefault(keeper.run.pod.key, set()).add(note)
        return found
