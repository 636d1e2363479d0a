# SPDX-License-Identifier: Apache-2.0
"""Other resources for containers that run (RSZ-01)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.model.nodes.control_group import GroupShape
from agent.model.pods.container_fields import Resources
from agent.model.runtime.error import RuntimeCallFailed
from agent.pods.plan.admit import Capacity, PodPlaces
from agent.pods.plan.remembered import ContainerMemory, Failing, Memory
from agent.pods.plan.resize import DEFERRED, INFEASIBLE, Resize, ResizePlan, differences, plan_resize
from agent.pods.plan.stop_state import Trigger, begin_stop
from agent.pods.runtime.pod_group import PodLimits, pod_limits, room_for
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Plane, Slow, manifest, running
from tests.pods.pods import World, container, make_pod

GIB = 1 << 30
ROOM = Capacity(milli_cpus=4000, memory_bytes=8 * GIB, pods=110)


def amounts(cpu: str = "", memory: str = "", request: str = "") -> dict[str, Any]:
    limits = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value}
    return {"limits": limits, "requests": {"cpu": request} if request else {}}


def planned(
    before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]], others: str = "0", **fields: Any
) -> ResizePlan:
    """What is done where containers run with `before` and their manifest says `after`."""
    world = World(make_pod([container(name, resources=given, **fields) for name, given in before.items()]))
    world.settle()
    known = {name: ContainerMemory(resources=msgspec.convert(given, Resources)) for name, given in before.items()}
    pod = make_pod([container(name, resources=given, **fields) for name, given in after.items()])
    places = PodPlaces()
    places.take(replace(make_pod([container("a", resources={"requests": {"cpu": others}})]), uid="other"))
    memory = Memory(containers=known)
    return plan_resize(pod, memory, differences(pod, world.seen, memory, {}), PodLimits(), places, ROOM)


def test_nothing_is_done_where_nothing_differs() -> None:
    assert planned({"a": amounts("1")}, {"a": amounts("1")}) == ResizePlan()
    assert planned({"a": amounts("1000m")}, {"a": amounts("1")}) == ResizePlan(), "the same in other words"


def test_what_frees_comes_before_what_takes() -> None:
    more, less = amounts("1", request="100m"), amounts("500m", request="100m")
    plan = planned({"a": less, "b": more}, {"a": more, "b": less})

    assert [str(step) for step in plan.steps] == ["resize b", "resize a"]


def test_only_the_policy_of_what_changes_restarts() -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    cpu = planned({"a": amounts("1", "1Gi", "1m")}, {"a": amounts("2", "1Gi", "1m")}, resizePolicy=policy)
    memory = planned({"a": amounts("1", "1Gi", "1m")}, {"a": amounts("1", "2Gi", "1m")}, resizePolicy=policy)

    assert [step.needs_restart for step in (*cpu.steps, *memory.steps)] == [False, True]


def test_a_lower_memory_limit_is_looked_at_before_it_is_set() -> None:
    plan = planned({"a": amounts(memory="2Gi", request="1m")}, {"a": amounts(memory="1Gi", request="1m")})

    assert [step.memory_limit for step in plan.steps] == [GIB]


def test_the_class_of_a_pod_may_not_change() -> None:
    plan = planned({"a": amounts("1", "1Gi")}, {"a": amounts("2", "1Gi", "1")})

    assert (plan.pending, plan.steps) == (INFEASIBLE, ())
    assert plan.message.endswith("it is Guaranteed and would be Burstable")


def test_more_than_the_node_has_will_never_do_and_more_than_is_free_not_now() -> None:
    before, after = {"a": amounts("9", request="1")}, {"a": amounts("9", request="3")}
    never = planned(before, {"a": amounts("9", request="5")})
    later = planned(before, after, "2")

    assert (never.pending, never.message) == (
        INFEASIBLE, "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000",
    )  # fmt: skip
    assert (later.pending, later.message) == (
        DEFERRED, "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000",
    )  # fmt: skip
    assert planned(before, after).steps


def test_who_does_not_run_is_given_its_share_when_it_starts() -> None:
    world = World(make_pod([container("a", resources=amounts("1"))]))

    assert differences(world.pod, world.seen, world.memory, {"a": 1000}) == ()
    assert plan_resize(world.pod, world.memory, (), PodLimits(), PodPlaces(), ROOM) == ResizePlan()


@pytest.mark.parametrize(
    ("had_us", "wanted_us", "limit", "steps"),
    [
        (0, 0, "1", []),
        (0, 50_000, "1", [("a", 50_000, True)]),
        (50_000, 50_000, "1", []),
        (50_000, 0, "1", [("a", 0, True)]),
        (50_000, 50_000, "2", [("a", 50_000, False)]),
        (50_000, 20_000, "200m", [("a", 20_000, False)]),
    ],
)
def test_a_burst_is_given_once_and_goes_along_with_other_amounts(
    had_us: int, wanted_us: int, limit: str, steps: list[tuple[str, int, bool]]
) -> None:
    """RES-07."""
    world = World(make_pod([container("a", resources=amounts("1"))]))
    world.settle()
    given = ContainerMemory(resources=msgspec.convert(amounts("1"), Resources), burst_us=had_us)
    pod = make_pod([container("a", resources=amounts(limit))])
    found = differences(pod, world.seen, Memory(containers={"a": given}), {"a": wanted_us} if wanted_us else {})

    assert [(one.name, one.burst_us, one.is_quiet) for one in found] == steps


def as_a_whole(cpu: str, memory: str) -> dict[str, Any]:
    return {"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": "100m", "memory": "1Mi"}}


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        (("1", "1Gi"), ("1", "1Gi"), []),
        (("1", "1Gi"), ("2", "2Gi"), ["pod 200000 2", "a", "b"]),
        (("2", "2Gi"), ("1", "1Gi"), ["a", "b", "pod 100000 1"]),
        (("1", "2Gi"), ("2", "1Gi"), ["pod 200000 2", "a", "b", "pod 200000 1"]),
        (("1", "1Gi"), ("2", "1Gi"), ["pod 200000 1", "a", "b"]),
    ],
)
def test_the_pod_grows_before_its_containers_and_shrinks_after_them(
    before: tuple[str, str], after: tuple[str, str], steps: list[str]
) -> None:
    """RSZ-01, RES-06: containers without limits have those of the pod; what was done is not planned again."""
    had, has = (make_pod(["a", "b"], resources=as_a_whole(*one)) for one in (before, after))
    world = World(had)
    world.settle()
    known = {name: ContainerMemory(resources=Resources()) for name in ("a", "b")}
    memory = Memory(containers=known, resources=had.spec.resources, group=pod_limits(had, 0, GroupShape()))
    limits = pod_limits(has, 0, GroupShape())

    def planned_from(memory: Memory) -> tuple[Resize, ...]:
        found = differences(has, world.seen, memory, {})
        return plan_resize(has, memory, found, limits, PodPlaces(), ROOM).steps

    def shown(step: Resize) -> str:
        return step.name if step.limits is None else f"pod {step.limits.cpu_quota_us} {step.limits.memory_bytes // GIB}"

    plan = planned_from(memory)

    assert [shown(step) for step in plan] == steps
    assert not any(step.is_quiet for step in plan)
    for step in plan:
        # A kepd that dies here leaves the group as it was last written down.
        memory = msgspec.structs.replace(memory, group=step.limits or memory.group)
        left = [shown(one) for one in planned_from(memory)]
        assert left == [one for one in steps if one in left], "nothing new is planned"
        assert left[-1] == steps[-1] or step is plan[-1]
    memory = msgspec.structs.replace(memory, resources=has.spec.resources, group=limits)
    assert planned_from(memory) == ()


def test_a_pod_shrinks_after_a_container_that_restarts_for_it() -> None:
    """RSZ-01: until then the old instance has more than the pod could."""
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    had, has = (make_pod([container("a", resizePolicy=policy)], resources=as_a_whole(cpu, "1Gi")) for cpu in ("2", "1"))
    world = World(had)
    world.settle()
    known = ContainerMemory(resources=Resources())
    group, limits = (pod_limits(one, 0, GroupShape()) for one in (had, has))
    memory = Memory(containers={"a": known}, resources=had.spec.resources, group=group)
    first = plan_resize(has, memory, differences(has, world.seen, memory, {}), limits, PodPlaces(), ROOM)
    failing = msgspec.structs.replace(known, failing=Failing(instance="a", cause="resize", message=""))
    noted = msgspec.structs.replace(memory, containers={"a": failing}, resources=has.spec.resources)
    second = plan_resize(has, noted, (), limits, PodPlaces(), ROOM)
    ended = msgspec.structs.replace(noted, containers={"a": known})
    third = plan_resize(has, ended, (), limits, PodPlaces(), ROOM)

    ending = begin_stop(Trigger.FAULT, (), 1.0, 0.0)
    assert plan_resize(has, ended.with_stop("b", ending), (), limits, PodPlaces(), ROOM) == ResizePlan()
    assert [str(one) for one in first.steps] == ["restart a with new resources"]
    assert second == ResizePlan()
    assert [(str(one), one.limits) for one in third.steps] == [("resize the pod", limits)]


def test_the_class_may_not_change_by_the_pod_as_a_whole_either() -> None:
    given = {"limits": {"cpu": "1", "memory": "1Gi"}}
    had, has = make_pod(resources=as_a_whole("1", "1Gi")), make_pod(resources=given)
    memory = Memory(resources=had.spec.resources, group=pod_limits(had, 0, GroupShape()))
    plan = plan_resize(has, memory, (), pod_limits(has, 0, GroupShape()), PodPlaces(), ROOM)

    assert (plan.pending, plan.steps) == (INFEASIBLE, ())
    assert plan.message.endswith("it is Burstable and would be Guaranteed")


@pytest.fixture
def cri() -> Slow:
    return Slow()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.pods.run.one_pod.resizing.RETRY_S", 0.05)


def sized(limit: str, name: str = "web", request: str = "100m") -> bytes:
    more = f"resources: {{limits: {{memory: {limit}}}, requests: {{cpu: {request}, memory: 1Mi}}}}"
    text = manifest(name, "i", more=f", uid: {name}").replace(b"image: i}", f"image: i, {more}}}".encode())
    assert more.encode() in text
    return text


def told(plane: Plane) -> list[str]:
    return [event.reason for event in plane.events if event.reason.startswith("Resize")]


def conditions(plane: Plane, name: str = "web-n") -> list[tuple[str, str]]:
    return [(one.type, one.reason) for one in plane.pod(name).conditions if one.type.startswith("PodResize")]


async def test_a_limit_below_what_is_used_is_refused_until_it_is_not(cri: Slow, tmp_path: Path) -> None:
    given = FakeManifestDirectory({"/m/f.yaml": sized("100Mi")})
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        (container_id,) = cri._containers
        cri.used[container_id] = 60 << 20
        given.put("/m/f.yaml", sized("50Mi"))
        await plane.until(lambda: conditions(plane) == [("PodResizeInProgress", "Error")], "it is refused")
        messages = [event.message for event in plane.events if event.reason == "ResizeError"]
        assert "UpdateContainerResources" not in cri.calls
        cri.used[container_id] = 10 << 20
        await plane.until(lambda: "ResizeCompleted" in told(plane), "and done as soon as it can be")
        await plane.until(lambda: not conditions(plane), "nothing is left to do")

    text = "attempting to set memory limit (52428800) of container a below current usage (62914560)"
    assert messages == [f"cannot decrease memory limits: {text}"]
    assert told(plane) == ["ResizeStarted", "ResizeError", "ResizeCompleted"]
    assert cri.stops == []


async def test_what_the_node_has_no_room_for_waits_for_others_to_end(cri: Slow, tmp_path: Path) -> None:
    """Deferred; the fake node has one processor."""
    files = {"/m/f.yaml": sized("100Mi"), "/m/g.yaml": sized("100Mi", "big", "800m")}
    given = FakeManifestDirectory(files)
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running", big="Running")
        given.put("/m/f.yaml", sized("100Mi", request="300m"))
        await plane.until(lambda: conditions(plane) == [("PodResizePending", "Deferred")], "it waits")
        given.put("/m/g.yaml", None)
        await plane.until(lambda: "ResizeCompleted" in told(plane), "there is room now")
        given.put("/m/f.yaml", sized("100Mi", request="1100m"))
        await plane.until(lambda: conditions(plane) == [("PodResizePending", "Infeasible")], "too much for ever")

    assert told(plane) == ["ResizeDeferred", "ResizeStarted", "ResizeCompleted", "ResizeInfeasible"]


async def test_a_resize_that_kepd_did_not_live_to_see_is_done_by_the_next(cri: Slow, tmp_path: Path) -> None:
    given = FakeManifestDirectory({"/m/f.yaml": sized("100Mi")})
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running")
        run = plane.runner.keeper("default", "web-n").run  # type: ignore[union-attr]
        await plane.until(lambda: run.saved_memory == run.memory, "it is written down")
    given.put("/m/f.yaml", sized("200Mi"))
    cri.failures["UpdateContainerResources"] = RuntimeCallFailed("UpdateContainerResources", "not today")
    async with running(cri, given, tmp_path) as plane:
        await plane.until(lambda: told(plane) == ["ResizeStarted", "ResizeError", "ResizeCompleted"], "done")

    assert cri.stops == []


@pytest.mark.parametrize(
    ("before", "after", "room"),
    [
        (PodLimits(), PodLimits(), PodLimits()),
        (PodLimits(memory_bytes=1), PodLimits(memory_bytes=2), PodLimits(memory_bytes=2)),
        (PodLimits(memory_bytes=2), PodLimits(memory_bytes=1), PodLimits(memory_bytes=2)),
        (PodLimits(memory_bytes=2), PodLimits(), PodLimits()),
        (PodLimits(), PodLimits(memory_bytes=2), PodLimits()),
        (PodLimits(cpu_shares=9, cpu_quota_us=5), PodLimits(cpu_quota_us=7), PodLimits(cpu_shares=9, cpu_quota_us=7)),
        (PodLimits(cpu_burst_us=5), PodLimits(cpu_quota_us=7), PodLimits(cpu_burst_us=5)),
    ],
)
def test_there_is_room_for_both_while_containers_change(before: PodLimits, after: PodLimits, room: PodLimits) -> None:
    """RSZ-01: no limit is more than any."""
    assert room_for(before, after) == room


def test_processes_and_pages_of_a_running_pod_stay_as_they_are() -> None:
    """RSZ-01: they count from the next sandbox."""
    had = PodLimits(pids=5, hugepages=(("2MB", 4),))
    plan = plan_resize(make_pod(), Memory(group=had), (), PodLimits(pids=7, hugepages=(("2MB", 2),)), PodPlaces(), ROOM)

    assert plan == ResizePlan()
