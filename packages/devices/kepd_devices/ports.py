# SPDX-License-Identifier: Apache-2.0
"""What the devices plane needs from outside."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from agent.model.pods.pod import PodSpec
from kepd_devices.cdi.merging import Catalogue, HostNode
from kepd_devices.manifest.objects import DeviceClass, Slice
from kepd_devices.plan.answers import Answers
from kepd_devices.plan.records import ClaimRecord


class DriverFailed(Exception):
    """A call that brought no answer; whether the driver did anything is not known."""


class DeviceDriver(Protocol):
    """Makes devices ready for claims. Calls may be repeated: what is done is answered again. They raise
    DriverFailed."""

    @property
    def name(self) -> str: ...

    @property
    def why_away(self) -> str:
        """Nothing while it can be called."""

    def slices(self) -> Sequence[Slice]: ...

    def classes(self) -> Sequence[DeviceClass]:
        """Those that come with it; manifests may have others of the same name."""

    def extra_s(self, claims: Sequence[ClaimRecord], *, is_prepare: bool) -> float:
        """How much longer than others it may take, for commands that have limits of their own."""

    async def prepare(self, claims: Sequence[ClaimRecord]) -> Answers: ...

    async def unprepare(self, claims: Sequence[ClaimRecord]) -> Answers: ...


class CdiPlace(Protocol):
    """CDI files of this node, and the nodes that they speak of."""

    async def catalogue(self) -> Catalogue: ...

    async def nodes(self, paths: Iterable[str]) -> Mapping[str, HostNode | None]: ...

    async def write(self, name: str, content: bytes) -> None: ...

    async def remove(self, name: str) -> None: ...

    async def names(self) -> list[str]: ...


class PodsOfNode(Protocol):
    """Pods that may hold devices. Nothing is known of them before `listed`."""

    async def listed(self) -> None: ...

    def uids(self) -> Collection[str]: ...

    def noted(self) -> Mapping[str, Collection[str]]:
        """By pod, what its running containers carry about their claims."""

    def pod(self, namespace: str, name: str) -> PodSpec | None: ...

    def devices_changed(self) -> None:
        """What pods wait for may be there."""
