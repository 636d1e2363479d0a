# SPDX-License-Identifier: Apache-2.0
"""What is wanted on this node, as a plane hears of it."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from agent.model.manifests.snapshot import ManifestSnapshot
from agent.objects.admitting import NOTHING, InForce


class Wanted(msgspec.Struct, frozen=True):
    """What is in force, and the look at the directory that it came of."""

    look: ManifestSnapshot = ManifestSnapshot()
    in_force: InForce = NOTHING


class WantedSource(Protocol):
    def news(self) -> AsyncIterator[Wanted]:
        """What was in force when the last process ended, then what is now, and again after changes."""

    async def settle(self) -> None:
        """What was in force is known to the plane, though not all files could be read."""
