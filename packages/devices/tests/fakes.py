# SPDX-License-Identifier: Apache-2.0
"""A driver and CDI files in memory, with the failures that real ones have."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.drivers.clock.driver import SystemClock
from agent.model.devices.plugin import ClaimAnswer, PreparedDevice
from kepd_devices.cdi.merging import Catalogue, CdiFile, HostNode
from kepd_devices.cdi.spec import CdiDevice, CdiSpec, Edits, parse_spec
from kepd_devices.local.fake import class_for
from kepd_devices.manifest.objects import DeviceClass, Slice
from kepd_devices.plan.answers import Answers
from kepd_devices.plan.records import ClaimRecord
from packages.devices.tests.offered import DRIVER, device, slice_of


class LateClock(SystemClock):
    """As late as a test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


class FakeCdi:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.specs: list[CdiSpec] = []
        self.host: dict[str, HostNode] = {}

    async def catalogue(self) -> Catalogue:
        written = [parse_spec(name, content)[0] for name, content in self.files.items()]
        known = [one for one in (*self.specs, *written) if one is not None]
        return Catalogue([CdiFile(f"/cdi/{place}", 0, one) for place, one in enumerate(known)], ["/cdi"])

    async def nodes(self, paths: Iterable[str]) -> Mapping[str, HostNode | None]:
        return {path: self.host.get(path) for path in paths}

    async def write(self, name: str, content: bytes) -> None:
        self.files[name] = content

    async def remove(self, name: str) -> None:
        self.files.pop(name, None)

    async def names(self) -> list[str]:
        return sorted(self.files)


class FakeDriver:
    """Each device has the CDI id DRIVER/gpu=DEVICE, which `cdi` knows. `ready` is what it prepared; calls are listed,
    and the next ones end as `fails` says, or when `may_answer` is set."""

    def __init__(self, count: int = 2, name: str = DRIVER, cdi: FakeCdi | None = None) -> None:
        self.name = name
        self.why_away = ""
        self.ready: dict[str, str] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.fails: list[Callable[[Answers], Answers]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.published = [slice_of(*(device(f"gpu-{number}") for number in range(count)), driver=name)]
        devices = tuple(
            CdiDevice(name=f"gpu-{number}", container_edits=Edits(env=(f"GPU={number}",))) for number in range(count)
        )
        if cdi is not None and devices:
            cdi.specs.append(CdiSpec(cdi_version="0.3.0", kind=f"{name}/gpu", devices=devices))

    def slices(self) -> Sequence[Slice]:
        return self.published

    def classes(self) -> Sequence[DeviceClass]:
        return (class_for(self.name),)

    def extra_s(self, claims: Sequence[ClaimRecord], *, is_prepare: bool) -> float:
        del claims, is_prepare
        return 0.0

    async def prepare(self, claims: Sequence[ClaimRecord]) -> Answers:
        self.calls.append(("prepare", tuple(one.key for one in claims)))
        await self.may_answer.wait()
        for one in claims:
            self.ready[one.uid] = one.key
        return self._told({one.uid: self._prepared(one) for one in claims})

    def _prepared(self, record: ClaimRecord) -> ClaimAnswer:
        own = [one for one in record.results if one.driver == self.name]
        return ClaimAnswer(
            tuple(
                PreparedDevice(pool=one.pool, device=one.device, cdi_ids=(f"{self.name}/gpu={one.device}",))
                for one in own
            )
        )

    async def unprepare(self, claims: Sequence[ClaimRecord]) -> Answers:
        self.calls.append(("unprepare", tuple(one.key for one in claims)))
        await self.may_answer.wait()
        answers = self._told({one.uid: ClaimAnswer() for one in claims})
        for one in claims:
            if one.uid in answers and not answers[one.uid].error:
                self.ready.pop(one.uid, None)
        return answers

    def _told(self, answers: Answers) -> Answers:
        return self.fails.pop(0)(answers) if self.fails else answers
