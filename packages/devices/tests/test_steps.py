# SPDX-License-Identifier: Apache-2.0
"""The planner of records, driven to every point and cut off there. DVM-40."""

from collections import Counter

import msgspec
import pytest

from kepd_devices.manifest.objects import Allocation, ClaimStatus, DeviceAllocation, Result
from kepd_devices.plan.records import ClaimRecord, Holder, Stage, decode_record, encode_record, new_record
from kepd_devices.plan.steps import Forget, Leave, Mark, Prepare, Step, Unprepare, plan
from packages.devices.tests.offered import claim

BOOT = "b1"


def record(name: str = "c", *pods: str, drivers: tuple[str, ...] = ("d1", "d2")) -> ClaimRecord:
    results = tuple(Result(request="r", driver=one, pool="p", device=f"{name}-{one}") for one in drivers)
    allocation = Allocation(devices=DeviceAllocation(results=results))
    made = msgspec.structs.replace(claim(name), status=ClaimStatus(allocation=allocation))
    found = new_record(made, is_made=False, boot_id=BOOT, holder=Holder("x", "default", "x"))
    holders = tuple(Holder(pod, "default", pod) for pod in pods or ("pod",))
    return msgspec.structs.replace(found, holders=holders)


class World:
    """Records on a disk, and drivers that have what they prepared. `left` steps are carried out, then it is cut off."""

    def __init__(self, *records: ClaimRecord, pods: set[str], left: int = 1000, boot: str = BOOT) -> None:
        self.disk = {one.uid: encode_record(one) for one in records}
        self.pods = pods
        self.boot = boot
        self.left = left
        self.ready: set[tuple[str, str]] = set()
        self.begun: set[tuple[str, str]] = set()
        self.calls: Counter[str] = Counter()

    @property
    def records(self) -> dict[str, ClaimRecord]:
        return {uid: decode_record(content) for uid, content in self.disk.items()}

    def plan(self) -> tuple[Step, ...]:
        return plan(self.records.values(), self.pods, self.boot)

    def settle(self) -> bool:
        """Whether it came to its end."""
        for _ in range(100):
            steps = self.plan()
            if not steps:
                return True
            for step in steps:
                if self.left == 0:
                    return False
                self.left -= 1
                self.do(step)
        raise AssertionError(f"no end: {steps}")

    def do(self, step: Step) -> None:
        match step:
            case Leave(uid, pods):
                self.save(self.records[uid].without_holders(pods))
            case Mark(uid, driver, stage):
                self.save(self.records[uid].at(driver, stage))
            case Forget(uid):
                assert not any(one == uid for one, _ in self.ready), "forgotten while a driver has it"
                del self.disk[uid]
            case Prepare(driver, uids):
                for uid in uids:
                    assert self.records[uid].drivers[driver].stage is Stage.PREPARING, "not written down first"
                    self.ready.add((uid, driver))
                    self.begun.add((uid, driver))
                    self.calls["prepare"] += 1
                    self.answered(uid, driver, Stage.PREPARED)
            case Unprepare(driver, uids):
                for uid in uids:
                    assert (uid, driver) in self.begun, "unprepared, and never begun"
                    self.ready.discard((uid, driver))
                    self.calls["unprepare"] += 1
                    self.answered(uid, driver, Stage.RELEASED)

    def answered(self, uid: str, driver: str, stage: Stage) -> None:
        """The answer's record is a step of its own."""
        if self.left > 0:
            self.left -= 1
            self.save(self.records[uid].at(driver, stage))

    def save(self, record: ClaimRecord) -> None:
        self.disk[record.uid] = encode_record(record)


def test_a_claim_is_prepared_by_all_its_drivers_and_given_back() -> None:
    """DVM-10, DVM-15."""
    world = World(record(), pods={"pod"})
    assert [str(one) for one in world.plan()] == ["write u-c of d1 as preparing", "write u-c of d2 as preparing"]
    assert world.settle()
    assert world.ready == {("u-c", "d1"), ("u-c", "d2")}

    world.pods = set()
    assert world.settle()
    assert (world.ready, world.disk) == (set(), {})
    assert world.calls == {"prepare": 2, "unprepare": 2}


def test_planning_again_after_the_end_gives_nothing() -> None:
    world = World(record(), record("e", "pod", "more"), pods={"pod", "more"})
    world.settle()

    assert world.plan() == ()


def test_one_call_asks_a_driver_for_everything() -> None:
    """DVM-11."""
    world = World(record("a"), record("b"), pods={"pod"})
    for step in world.plan():
        world.do(step)

    assert [str(one) for one in world.plan()] == ["ask d1 to prepare u-a, u-b", "ask d2 to prepare u-a, u-b"]


def test_a_claim_that_is_shared_goes_with_its_last_pod() -> None:
    """DVM-26."""
    world = World(record("c", "one", "two"), pods={"one", "two"})
    world.settle()
    world.pods = {"two"}
    world.settle()

    assert [one.uid for one in world.records["u-c"].holders] == ["two"]
    assert world.calls == {"prepare": 2}
    world.pods = set()
    world.settle()
    assert (world.calls, world.disk) == ({"prepare": 2, "unprepare": 2}, {})


def test_what_was_never_begun_is_never_unprepared() -> None:
    """DVM-16."""
    world = World(record(), pods=set())
    world.settle()

    assert (world.calls, world.disk) == ({}, {})


def test_what_was_begun_is_unprepared_though_its_preparation_failed() -> None:
    """DVM-16."""
    world = World(record().at("d1", Stage.PREPARING), pods=set())
    world.begun = {("u-c", "d1")}
    world.settle()

    assert (world.calls, world.disk) == ({"unprepare": 1}, {})


def test_a_reboot_gives_everything_of_the_last_boot_back() -> None:
    """DVM-45."""
    world = World(record(), pods={"pod"})
    world.settle()
    world.boot = "b2"
    world.settle()

    assert (world.ready, world.disk) == (set(), {})


def test_an_end_that_was_begun_is_finished_before_anybody_holds_it_again() -> None:
    world = World(record().at("d1", Stage.UNPREPARING).at("d2", Stage.PREPARED), pods={"pod"})
    world.begun = {("u-c", "d1"), ("u-c", "d2")}
    world.settle()

    assert world.disk == {}


@pytest.mark.parametrize("until", range(40))
def test_cut_off_anywhere_it_goes_on_to_the_same_end(until: int) -> None:
    """DVM-40: every prefix of prepare, two pods of one claim, their ends, and a reboot."""
    world = World(record("a", "one", "two"), record("b", "two", drivers=("d1",)), pods={"one", "two"}, left=until)
    lives = [{"one", "two"}, {"two"}, set()]
    for pods in lives:
        world.pods = set(pods)
        if not world.settle():
            break
    # A new kepd begins from the disk alone.
    world.left = 1000
    for pods in lives[lives.index(world.pods) :]:
        world.pods = set(pods)
        assert world.settle()
        held = {one.uid for one in world.records.values() if any(it.uid in pods for it in one.holders)}
        assert {uid for uid, _ in world.ready} <= held

    assert (world.ready, world.disk) == (set(), {})
