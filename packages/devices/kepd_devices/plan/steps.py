# SPDX-License-Identifier: Apache-2.0
"""What has to be done next so that claims are prepared for the pods that hold them, and given back after the last.

The invariant: before a driver is asked for anything the record says that it will be, and a record goes only when no
driver has anything of the claim any more. So planning again after any step, also after a crash, goes on where the
records show; what was begun is asked for again, and what was not begun is never unprepared. Pure.
"""

from collections.abc import Collection, Iterable, Iterator

import msgspec

from kepd_devices.plan.records import BEGUN, ClaimRecord, Stage


class Leave(msgspec.Struct, frozen=True):
    """Pods that are gone hold the claim no more; others do."""

    uid: str
    pods: tuple[str, ...]

    def __str__(self) -> str:
        return f"take {len(self.pods)} pods from {self.uid}"


class Mark(msgspec.Struct, frozen=True):
    """Write down how far a driver is."""

    uid: str
    driver: str
    stage: Stage

    def __str__(self) -> str:
        return f"write {self.uid} of {self.driver} as {self.stage}"


class Prepare(msgspec.Struct, frozen=True):
    driver: str
    uids: tuple[str, ...]

    def __str__(self) -> str:
        return f"ask {self.driver} to prepare {', '.join(self.uids)}"


class Unprepare(msgspec.Struct, frozen=True):
    driver: str
    uids: tuple[str, ...]

    def __str__(self) -> str:
        return f"ask {self.driver} to unprepare {', '.join(self.uids)}"


class Forget(msgspec.Struct, frozen=True):
    """Take the record away."""

    uid: str

    def __str__(self) -> str:
        return f"forget {self.uid}"


Step = Leave | Mark | Prepare | Unprepare | Forget


def plan(records: Iterable[ClaimRecord], pods: Collection[str], boot_id: str) -> tuple[Step, ...]:
    """`pods` are the uids of those that may hold claims. Writing comes before asking, and asking is one call per driver
    for everything that it has to do; nothing of a claim is asked of a driver in the same plan that writes it down."""
    told = sorted(records, key=lambda one: one.uid)
    writes = [step for one in told for step in _writes(one, pods, boot_id)]
    written = {step.uid for step in writes}
    return (*writes, *_calls([one for one in told if one.uid not in written]))


def _writes(record: ClaimRecord, pods: Collection[str], boot_id: str) -> Iterator[Leave | Mark | Forget]:
    """The last pods stay in the record until everything is given back: whoever starts anew knows whose end waits."""
    is_old = record.boot_id != boot_id
    gone = tuple(one.uid for one in record.holders if is_old or one.uid not in pods)
    is_held = len(gone) < len(record.holders) and not record.is_ending
    if is_held and gone:
        yield Leave(record.uid, gone)
        return
    stages = {driver: part.stage for driver, part in record.drivers.items()}
    if is_held:
        for driver in sorted(driver for driver, stage in stages.items() if stage is Stage.ALLOCATED):
            yield Mark(record.uid, driver, Stage.PREPARING)
    elif not any(stage in BEGUN for stage in stages.values()):
        yield Forget(record.uid)
    else:
        for driver in sorted(driver for driver, stage in stages.items() if stage in (Stage.PREPARING, Stage.PREPARED)):
            yield Mark(record.uid, driver, Stage.UNPREPARING)


def _calls(records: list[ClaimRecord]) -> Iterator[Prepare | Unprepare]:
    for stage, kind in ((Stage.PREPARING, Prepare), (Stage.UNPREPARING, Unprepare)):
        by_driver: dict[str, list[str]] = {}
        for one in records:
            for driver, part in one.drivers.items():
                if part.stage is stage:
                    by_driver.setdefault(driver, []).append(one.uid)
        yield from (kind(driver, tuple(uids)) for driver, uids in sorted(by_driver.items()))
