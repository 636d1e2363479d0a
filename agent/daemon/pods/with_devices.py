# SPDX-License-Identifier: Apache-2.0
"""Which pods may hold devices, as the devices plane asks it."""

from collections.abc import Collection

import msgspec

from agent.pods.run.runner import PodRunner


class PodsWithDevices(msgspec.Struct, frozen=True):
    """Pods that are kept, be it until they have ended, and those that are wanted and may yet begin."""

    runner: PodRunner

    async def listed(self) -> None:
        await self.runner.listed()

    def uids(self) -> Collection[str]:
        return self.runner.keepers.keys() | self.runner.wanted_uids
