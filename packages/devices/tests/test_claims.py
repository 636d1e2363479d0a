# SPDX-License-Identifier: Apache-2.0
"""The manager over a driver and a disk in memory: what pods hold, what fails, and what a new process finds."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from agent.model.desk import Desk, DeskFailed, Work
from agent.model.devices.container_devices import ContainerDevices
from agent.model.devices.plugin import ClaimAnswer, PreparedDevice
from agent.model.devices.problem import DevicesNotReady, DevicesNotReleased
from agent.model.event import Event
from agent.model.pods.pod import PodSpec
from agent.model.runtime.features import RuntimeFeatures
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.objects import Slice
from kepd_devices.manifest.reading import read_device_objects
from kepd_devices.plan.answers import Answers
from kepd_devices.plan.pace import MOST_CHANGES, WITHIN_S
from kepd_devices.plan.pools import PoolNode
from kepd_devices.plan.records import Stage
from kepd_devices.ports import DriverFailed
from kepd_devices.run.claims import DeviceClaims, ManagerSettings
from kepd_devices.run.searches import QUICK_S, SLOW_S
from packages.devices.tests.fakes import FakeCdi, FakeDriver, LateClock
from packages.devices.tests.offered import slice_at
from packages.devices.tests.test_pod_claims import pod
from packages.devices.tests.written import CLAIM, POD, TEMPLATE
from tests.fakes.jumping import jumps
from tests.fakes.state_files import FakeStateFiles

__all__ = ["jumps"]

ONE = CLAIM.replace("count: 2", "count: 1")
OLD = RuntimeFeatures(name="containerd", version="1.6.20")
NEW = RuntimeFeatures(name="containerd", version="2.1.9", resolves_cdi=True)
SHARED = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, uid: uid-NAME}
spec:
  resourceClaims: [{name: shared, resourceClaimName: gpus}]
  containers: [{name: main, image: "i:1", resources: {claims: [{name: shared}]}}]
"""


class NodeOfLives:
    """One node over the lives of its manager."""

    def __init__(self, count: int = 2, **settings: Any) -> None:
        self.disk = FakeStateFiles()
        self.cdi = FakeCdi()
        self.driver = FakeDriver(count, cdi=self.cdi)
        self.clock = LateClock()
        self.settings = ManagerSettings(node=PoolNode(name="here"), boot_id="b1", **settings)
        self.texts: tuple[str, ...] = (ONE, TEMPLATE)
        self.told: list[Event] = []

    async def manager(self, desks: Sequence[Desk] = ()) -> DeviceClaims:
        made = DeviceClaims(self.disk, self.cdi, self.clock, lambda: self.settings, self.told.append, desks=desks)
        await made.load()
        made.add_driver(self.driver)
        made.take(read_device_objects({"/m": "---\n".join(self.texts).encode()}, Reader("here")))
        return made

    @property
    def reasons(self) -> list[str]:
        return [one.reason for one in self.told]


def shared_pod(name: str) -> PodSpec:
    return pod(SHARED.replace("NAME", name))


async def held(manager: DeviceClaims, one: PodSpec) -> str:
    """Why not; nothing where it holds its claims."""
    try:
        await manager.hold(one)
    except DevicesNotReady as error:
        return f"{error.reason}: {error}"
    return ""


async def test_a_pod_gets_its_claims_prepared_and_gives_them_back() -> None:
    """DVM-10, DVM-15."""
    node = NodeOfLives()
    manager = await node.manager()
    await manager.hold(pod())

    assert sorted(node.driver.ready.values()) == ["default/gpus", "default/web-fast-sc6dm"]
    assert len(node.driver.calls) == 1
    found = await manager.edits(pod(), pod().containers[0], OLD)
    assert found.env == (("GPU", "1"),)
    assert found.notes[0][1].startswith("default/web-fast-sc6dm=")
    await manager.release("4711")
    assert (node.driver.ready, node.disk.files, manager.records) == ({}, {}, {})
    assert node.reasons == ["ClaimAllocated", "ClaimAllocated", "ClaimReleased", "ClaimReleased"]


async def test_a_runtime_with_cdi_gets_ids_alone() -> None:
    """DVC-2, DVC-5, DVM-14."""
    node = NodeOfLives()
    manager = await node.manager()
    await manager.hold(pod())
    found = await manager.edits(pod(), pod().containers[0], NEW)

    assert replace(found, notes=()) == ContainerDevices(
        cdi_ids=("gpu.example.com/gpu=gpu-0", "gpu.example.com/gpu=gpu-1")
    )


async def test_holding_again_asks_nobody() -> None:
    """DVM-17."""
    node = NodeOfLives()
    manager = await node.manager()
    await manager.hold(pod())
    node.driver.why_away = "is away"
    await manager.hold(pod())

    assert len(node.driver.calls) == 1


async def test_a_shared_claim_goes_with_its_last_pod() -> None:
    """DVM-26."""
    node = NodeOfLives(count=1)
    manager = await node.manager()
    for name in ("one", "two"):
        await manager.hold(shared_pod(name))
    await manager.release("uid-one")

    assert [kind for kind, _ in node.driver.calls] == ["prepare"]
    await manager.release("uid-two")
    assert [kind for kind, _ in node.driver.calls] == ["prepare", "unprepare"]


async def test_a_claim_is_prepared_anew_for_the_next_pod() -> None:
    """DVM-19: also where the pod before is still shown."""
    node = NodeOfLives(count=1)
    manager = await node.manager()
    await manager.hold(shared_pod("one"))
    uids = list(manager.records)
    await manager.release("uid-one")
    assert manager.records == {}
    await manager.hold(shared_pod("two"))

    assert [kind for kind, _ in node.driver.calls] == ["prepare", "unprepare", "prepare"]
    assert (list(manager.records), [one.name for it in manager.records.values() for one in it.holders]) == (
        uids, ["two"],
    )  # fmt: skip


async def test_who_finds_no_device_waits_and_is_told_when_one_is_free() -> None:
    """DVX-2."""
    node = NodeOfLives(count=1)
    node.texts = (TEMPLATE,)
    manager = await node.manager()
    news: list[bool] = []
    manager.changed = lambda: news.append(True)
    text = POD.replace(", {name: shared, resourceClaimName: gpus}", "").replace(", {name: shared, request: gpu}", "")
    first, second = pod(text), pod(text.replace("4711", "4712").replace("name: web", "name: other"))
    await manager.hold(first)
    why = await held(manager, second)

    assert why.startswith("ClaimUnallocatable: 0 of 1 for default/other-fast-")
    assert why.endswith("/gpu: 1 in-use default/web-fast-sc6dm")
    await manager.release("4711")
    assert news == [True]
    assert await held(manager, second) == ""


@pytest.mark.parametrize(
    ("fail", "complaint"),
    [
        (lambda _: {}, "driver gpu.example.com skipped claim default/gpus"),
        (
            lambda answers: dict.fromkeys(answers, ClaimAnswer(error="no\x1b power")),
            "driver gpu.example.com: no? power",
        ),
        (lambda answers: {**answers, "other": ClaimAnswer()}, "answers about claim 'other', which was not asked about"),
        (
            lambda answers: dict.fromkeys(answers, ClaimAnswer((PreparedDevice(pool="here", device="gpu-9"),))),
            "answers with device 'here/gpu-9', which claim default/gpus does not have",
        ),
        (
            lambda answers: dict.fromkeys(
                answers, ClaimAnswer((PreparedDevice(pool="here", device="gpu-0", requests=("nic",)),))
            ),
            "answers with request 'nic', which claim default/gpus does not have",
        ),
        (
            lambda answers: dict.fromkeys(
                answers, ClaimAnswer((PreparedDevice(pool="here", device="gpu-0", cdi_ids=("gpu0",)),))
            ),
            "answers with an id that cannot be used: 'gpu0' is no CDI id",
        ),
        (
            lambda answers: dict.fromkeys(
                answers, ClaimAnswer((PreparedDevice(pool="here", device="gpu-0", cdi_ids=("a/gpu=0",)),))
            ),
            "its vendor 'a' has one sign",
        ),
        (
            lambda answers: dict.fromkeys(
                answers, ClaimAnswer((PreparedDevice(pool="here", device="gpu-0", cdi_ids=("a.b/gpu=0",) * 200),))
            ),
            "answers with 200 CDI ids for one device; expected at most 128",
        ),
    ],
)
async def test_an_answer_that_cannot_be_true_is_told_and_what_was_begun_is_taken_back(
    fail: Callable[[Answers], Answers], complaint: str
) -> None:
    """DVM-12, DVM-16."""
    node = NodeOfLives()
    node.driver.fails = [fail]
    manager = await node.manager()
    why = await held(manager, shared_pod("one"))

    assert why.startswith("FailedPrepareDynamicResources: ")
    assert complaint in why
    assert "\n" not in why
    await manager.release("uid-one")
    assert (node.driver.ready, manager.records) == ({}, {})


async def test_a_failed_preparation_is_asked_for_again_and_replaces_what_was_known() -> None:
    """DVM-13, DVM-18."""
    node = NodeOfLives()
    node.driver.fails = [lambda answers: dict.fromkeys(answers, ClaimAnswer(error="busy"))]
    manager = await node.manager()

    assert "busy" in await held(manager, shared_pod("one"))
    assert await held(manager, shared_pod("one")) == ""
    (record,) = manager.records.values()
    assert [len(one.devices) for one in record.drivers.values()] == [1]


async def test_a_driver_that_is_away_makes_pods_wait_and_keeps_what_they_have() -> None:
    """DVM-4."""
    node = NodeOfLives()
    manager = await node.manager()
    await manager.hold(shared_pod("one"))
    node.driver.why_away = "gpu.example.com is away since its socket is gone"

    with pytest.raises(DevicesNotReleased, match="driver-away: gpu"):
        await manager.release("uid-one")
    assert [one.stage for one in manager.records.values()] == [Stage.UNPREPARING]
    node.driver.why_away = ""
    await manager.release("uid-one")
    assert (node.driver.ready, manager.records) == ({}, {})


async def test_a_driver_that_hangs_is_given_up_and_delays_no_other_pod() -> None:
    """DVF-4, DVM-18."""
    node = NodeOfLives(call_limit_s=0.01)
    other = FakeDriver(1, "nic.example.com", node.cdi)
    node.texts = (ONE, TEMPLATE.replace("gpu.example.com", "nic.example.com"))
    manager = await node.manager()
    manager.add_driver(other)
    node.driver.may_answer.clear()
    text = POD.replace(", {name: shared, resourceClaimName: gpus}", "").replace(", {name: shared, request: gpu}", "")
    hung = asyncio.create_task(held(manager, shared_pod("one")))

    assert await held(manager, pod(text)) == ""
    assert "driver gpu.example.com did not answer within 0.01 s" in await hung
    node.driver.may_answer.set()
    assert await held(manager, shared_pod("one")) == ""


async def test_who_is_interrupted_gives_back_what_was_begun() -> None:
    """DVM-16, DVM-18."""
    node = NodeOfLives()
    manager = await node.manager()
    node.driver.may_answer.clear()
    waiting = asyncio.create_task(manager.hold(shared_pod("one")))
    while not node.driver.calls:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    node.driver.may_answer.set()
    await manager.release("uid-one")

    assert [kind for kind, _ in node.driver.calls] == ["prepare", "unprepare"]
    assert manager.records == {}


async def test_a_driver_without_an_answer_is_asked_again() -> None:
    def dies(_: Answers) -> Answers:
        raise DriverFailed("the connection was closed")

    node = NodeOfLives()
    node.driver.fails = [dies]
    manager = await node.manager()

    assert "driver gpu.example.com: the connection was closed" in await held(manager, shared_pod("one"))
    assert await held(manager, shared_pod("one")) == ""


async def test_a_new_process_knows_what_pods_have() -> None:
    """DVM-40."""
    node = NodeOfLives()
    await (await node.manager()).hold(pod())
    manager = await node.manager()
    node.driver.why_away = "is away"
    before = await manager.edits(pod(), pod().containers[0], NEW)
    await manager.hold(pod())

    assert len(before.cdi_ids) == 2
    assert len(node.driver.calls) == 1


async def test_what_pods_held_that_are_gone_is_given_back() -> None:
    """DVM-41, DVM-43."""
    node = NodeOfLives()
    first = await node.manager()
    await first.hold(shared_pod("one"))
    await first.hold(shared_pod("two"))
    manager = await node.manager()
    await manager.reconcile(lambda: {"uid-two"})
    assert [[it.uid for it in one.holders] for one in manager.records.values()] == [["uid-two"]]

    await manager.reconcile(set)
    assert (node.driver.ready, node.disk.files) == ({}, {})


async def test_after_a_reboot_everything_is_prepared_anew() -> None:
    """DVM-45."""
    node = NodeOfLives()
    await (await node.manager()).hold(shared_pod("one"))
    node.settings = replace(node.settings, boot_id="b2")
    manager = await node.manager()
    await manager.hold(shared_pod("one"))

    assert [kind for kind, _ in node.driver.calls] == ["prepare", "unprepare", "prepare"]
    assert [one.boot_id for one in manager.records.values()] == ["b2"]


async def test_a_record_that_nobody_can_read_stops_all_that_is_new() -> None:
    """DVM-42."""
    node = NodeOfLives()
    node.disk.files["claims/u-1.json"] = b"{"
    manager = await node.manager()

    why = await held(manager, shared_pod("one"))
    assert why.partition(": ")[0] == "ClaimError"
    assert why.partition(": ")[2] == "record u-1.json of a claim cannot be read; what it holds is not known"
    assert set(node.disk.files) == {"claims/bad/u-1.json"}


async def test_what_a_container_has_without_a_record_stops_all_that_is_new() -> None:
    """DVM-41: until it ends."""
    node = NodeOfLives()
    manager = await node.manager()
    one = shared_pod("one")
    await manager.hold(one)
    notes = (await manager.edits(one, one.containers[0], NEW)).notes
    noted = {"default/one": {text for _, text in notes}}
    manager.noted = lambda: noted
    assert manager.doubts() == []
    node.disk.files.clear()
    manager = await node.manager()
    manager.noted = lambda: noted
    why = await held(manager, shared_pod("two"))
    uid = manager.unrecorded()[0].uid

    assert why == (
        "ClaimError: pod default/one runs with devices of claim default/gpus, of which no record is left; no device"
        f" is given until the pod ends, or `kepctl release claim {uid} --force`"
    )
    noted.clear()
    assert await held(manager, shared_pod("two")) == ""


async def test_what_a_container_has_without_a_record_is_forgotten_on_request() -> None:
    """DVM-41."""
    node = NodeOfLives()
    manager = await node.manager()
    manager.noted = lambda: {"default/one": {"default/old=u-1,default/new=u-2", "torn"}}
    found = manager.unrecorded()
    for one in found:
        await manager.forget(one.uid)

    assert [(one.claim, one.uid) for one in found] == [("", "torn"), ("default/new", "u-2"), ("default/old", "u-1")]
    assert await held(manager, shared_pod("two")) == ""


async def test_a_full_disk_stops_beginnings_and_no_ends() -> None:
    """DVM-44."""
    node = NodeOfLives()
    manager = await node.manager()
    await manager.hold(shared_pod("one"))
    node.disk.failure = OSError(28, "No space left on device")

    assert "No space left on device" in await held(manager, pod())
    assert node.driver.calls == [("prepare", ("default/gpus",))]
    await manager.release("uid-one")
    assert node.driver.ready == {}


async def test_a_changed_claim_waits_for_the_old_one() -> None:
    """DVM-25."""
    node = NodeOfLives()
    manager = await node.manager()
    await manager.hold(shared_pod("one"))
    node.texts = (CLAIM, TEMPLATE)
    manager.take(read_device_objects({"/m": CLAIM.encode()}, Reader("here")))

    assert await held(manager, shared_pod("two")) == (
        "ClaimUnallocatable: claim default/gpus has changed, and the old claim is still in use"
    )
    assert await held(manager, shared_pod("one")) == ""
    await manager.release("uid-one")
    assert await held(manager, shared_pod("two")) == ""


async def test_admin_access_needs_a_namespace_that_may_have_it() -> None:
    """DVA-50."""
    node = NodeOfLives()
    node.texts = (ONE.replace("count: 1", "adminAccess: true"),)
    manager = await node.manager()

    assert "adminNamespaces does not name its namespace" in await held(manager, shared_pod("one"))
    node.settings = replace(node.settings, admin_namespaces=("default",))
    assert await held(manager, shared_pod("one")) == ""


async def test_an_id_that_no_file_has_fails_with_the_directories() -> None:
    """DVC-2."""
    node = NodeOfLives()
    manager = await node.manager()
    await manager.hold(shared_pod("one"))
    node.cdi.specs.clear()

    with pytest.raises(DevicesNotReady, match=r"CDI id gpu\.example\.com/gpu=gpu-0 is in no file of /cdi"):
        await manager.edits(shared_pod("one"), shared_pod("one").containers[0], NEW)


async def test_a_request_that_the_claim_does_not_have_is_an_error() -> None:
    node = NodeOfLives()
    manager = await node.manager()
    one = pod(SHARED.replace("NAME", "one").replace("{name: shared}]}", "{name: shared, request: nic}]}"))
    await manager.hold(one)

    with pytest.raises(DevicesNotReady, match="claim default/gpus has no request nic"):
        await manager.edits(one, one.containers[0], NEW)


async def test_a_pod_that_begins_while_others_are_given_back_keeps_its_devices() -> None:
    """DVM-43."""
    node = NodeOfLives()
    manager = await node.manager()
    await manager.hold(shared_pod("one"))
    living: set[str] = set()
    node.driver.may_answer.clear()
    going = asyncio.create_task(manager.reconcile(lambda: living))
    while node.driver.calls[-1][0] != "unprepare":
        await asyncio.sleep(0)
    living.add("uid-two")
    holding = asyncio.create_task(held(manager, shared_pod("two")))
    node.driver.may_answer.set()
    await going
    assert await holding == ""
    await manager.reconcile(lambda: living)

    assert [[it.uid for it in one.holders] for one in manager.records.values()] == [["uid-two"]]


async def test_a_flood_of_slices_counts_later_and_is_told_once() -> None:
    """DVF-5."""
    node = NodeOfLives(0)
    node.driver.published = []
    manager = await node.manager()
    published: list[Slice] = []
    manager.publishers.append(lambda: published)
    for number in range(MOST_CHANGES + 10):
        published[:] = [slice_at(number, number)]
        manager.slices()

    assert [one.spec.pool.generation for one in manager.slices()] == [MOST_CHANGES]
    assert node.reasons == ["SlicesDelayed"]
    assert "pool here of driver gpu.example.com changed more than 10 times in 60 s" in node.told[0].message
    news: list[bool] = []
    manager.changed = lambda: news.append(True)
    node.clock.ahead_s += WITHIN_S
    assert (manager.catch_up(), news) == (True, [True])
    assert manager.slices() == tuple(published)
    assert (manager.catch_up(), node.reasons) == (False, ["SlicesDelayed"])


async def test_a_pool_that_contradicts_itself_is_told_once() -> None:
    """DVX-4, DVA-33."""
    node = NodeOfLives(0)
    manager = await node.manager()
    good = slice_at(1, 0, 1)
    twice = replace(good, spec=replace(good.spec, devices=(*good.spec.devices, *good.spec.devices)))
    node.driver.published = [good]
    looks = [manager.look_at_pools()]
    for _ in range(2):
        node.driver.published = [replace(twice)]
        looks.append(manager.look_at_pools())
    (event,) = [one for one in node.told if one.reason == "PoolInvalid"]
    node.driver.published = [good]
    looks.append(manager.look_at_pools())

    assert looks == [False, True, False, True]
    assert event.message == ("pool gpu.example.com/here gives no devices, for it is invalid: device gpu-0 stands twice")
    assert manager.invalid_pools == {}


async def test_a_status_that_is_trusted_is_what_the_claim_has() -> None:
    """DVM-22: nobody else gets the device, and what another claim has is not given twice."""
    status = """
status:
  allocation: {devices: {results: [{request: gpu, driver: gpu.example.com, pool: here, device: gpu-0}]}}
"""
    node = NodeOfLives(2)
    manager = await node.manager()
    copied = f"{ONE.strip()}{status}"
    more = (ONE.replace("name: gpus", "name: other"), copied.replace("name: gpus", "name: twin"))

    def take(*texts: str) -> None:
        files = {"/m": "---\n".join(f"{one.strip()}\n" for one in texts).encode()}
        manager.take(read_device_objects(files, Reader("here", trusts_status=True)))

    take(copied, more[0])
    other, mine, twin = (pod(SHARED.replace("NAME", one).replace("gpus", one)) for one in ("other", "gpus", "twin"))
    first = [await held(manager, other), await held(manager, mine)]
    given = {one.key: [it.device for it in one.results] for one in manager.records.values()}
    take(copied, *more)
    why = await held(manager, twin)

    assert first == ["", ""]
    assert given == {"default/other": ["gpu-1"], "default/gpus": ["gpu-0"]}
    assert "the status of claim default/twin has device gpu.example.com/here/gpu-0, which claim default/gpus has" in why


class GivenDesk:
    """Answers as the other process would, or not at all."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.is_away = False
        self.before: Callable[[], Awaitable[None]] | None = None

    async def ask(self, work: Work, given: bytes, deadline_s: float) -> bytes:
        self.asked.append(deadline_s)
        if self.before is not None:
            before, self.before = self.before, None
            await before()
        if self.is_away:
            raise DeskFailed(f"takes longer than {deadline_s:g} s")
        return work(given)


async def test_a_search_that_takes_long_goes_on_apart_and_comes_again_after_pauses_that_grow() -> None:
    """NP-4."""
    node = NodeOfLives()
    quick, patient = GivenDesk(), GivenDesk()
    manager = await node.manager(desks=(quick, patient))
    quick.is_away = patient.is_away = True
    said = [await held(manager, shared_pod("slow")) for _ in range(3)]
    asked = (list(quick.asked), list(patient.asked))
    node.clock.ahead_s += SLOW_S
    said.append(await held(manager, shared_pod("slow")))
    quick.is_away = False
    other = await held(manager, pod())
    node.clock.ahead_s += 2 * SLOW_S
    patient.is_away = False
    await manager.release("4711")

    assert asked == ([QUICK_S], [SLOW_S])
    assert "takes longer than 5 s" in said[0]
    assert "searched for again after 5 s" in said[1] == said[2]
    assert "takes longer than 5 s" in said[3]
    assert other == ""
    assert await held(manager, shared_pod("slow")) == ""
    assert patient.asked == [SLOW_S] * 3


async def test_what_a_search_found_counts_only_if_nobody_got_devices_meanwhile() -> None:
    node = NodeOfLives(count=1)
    node.texts = (ONE, ONE.replace("name: gpus", "name: more"))
    desk = GivenDesk()
    manager = await node.manager(desks=(desk, desk))

    async def other() -> None:
        await manager.hold(shared_pod("first"))

    desk.before = other
    later = pod(SHARED.replace("NAME", "second").replace("gpus", "more"))

    assert "1 in-use default/gpus" in await held(manager, later)
    assert [one.key for one in manager.records.values()] == ["default/gpus"]


async def test_a_driver_that_hangs_keeps_no_claims_of_others_from_being_given_back() -> None:
    """DVM-43."""
    node = NodeOfLives()
    nic = FakeDriver(1, name="nic.example.com")
    node.texts = (ONE, ONE.replace("name: gpus", "name: nics").replace("gpu.example.com", "nic.example.com"))
    manager = await node.manager()
    manager.add_driver(nic)
    await manager.hold(shared_pod("first"))
    await manager.hold(pod(SHARED.replace("NAME", "second").replace("gpus", "nics")))
    node.driver.may_answer.clear()
    going = asyncio.create_task(manager.reconcile(set))
    async with asyncio.timeout(20):
        while len(manager.records) == 2:
            await asyncio.sleep(0)
    left = [one.key for one in manager.records.values()]
    node.driver.may_answer.set()
    await going

    assert left == ["default/gpus"]
    assert manager.records == {}
