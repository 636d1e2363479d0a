# SPDX-License-Identifier: Apache-2.0
"""Groups of whole pods: where they stand, what they may use, and that a plan carried out leaves nothing to do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.nodes.control_group import GroupShape
from agent.pods.runtime.pod_group import (
    LevelNeeds,
    MakeGroup,
    PodLimits,
    cpu_weight,
    group_path,
    hugepage_limits,
    page_name,
    plan_group,
    pod_limits,
    room_for,
    wanted_group,
    wanted_levels,
)
from tests.fakes.cgroups import FakeControlGroups
from tests.pods.pods import container, make_pod

ALL = frozenset({"cpu", "memory", "pids", "hugetlb"})
PAGES = (2 << 20,)
ONE = GroupShape(controllers=ALL, hugepage_bytes=PAGES)
TWO = GroupShape(version=2, controllers=ALL, hugepage_bytes=PAGES)


def limited(name: str, cpu: str = "", memory: str = "", **fields: Any) -> Any:
    limits = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    return container(name, resources={"limits": limits, **fields.pop("resources", {})}, **fields)


BEST_EFFORT = make_pod()
BURSTABLE = make_pod([container("a", resources={"requests": {"cpu": "250m"}})])
GUARANTEED = make_pod([limited("a", "500m", "64Mi")])


@pytest.mark.parametrize(
    ("pod", "plain", "slices"),
    [
        (BEST_EFFORT, "/kepd/besteffort/podu1", "/kepd.slice/kepd-besteffort.slice/kepd-besteffort-podu1.slice"),
        (BURSTABLE, "/kepd/burstable/podu1", "/kepd.slice/kepd-burstable.slice/kepd-burstable-podu1.slice"),
        (GUARANTEED, "/kepd/podu1", "/kepd.slice/kepd-podu1.slice"),
    ],
)
def test_each_way_of_managing_groups_has_its_paths(pod: Any, plain: str, slices: str) -> None:
    """RES-04."""
    assert group_path(pod, "kepd", uses_systemd=False) == plain
    assert group_path(pod, "kepd", uses_systemd=True) == slices


def test_hyphens_are_steps_to_systemd() -> None:
    from dataclasses import replace

    pod = replace(GUARANTEED, uid="12-ab")

    assert group_path(pod, "my-root", uses_systemd=True) == "/my_root.slice/my_root-pod12_ab.slice"
    assert group_path(pod, "my-root", uses_systemd=False) == "/my-root/pod12-ab"


@pytest.mark.parametrize(
    ("pod", "limits"),
    [
        (BEST_EFFORT, PodLimits()),
        (BURSTABLE, PodLimits(cpu_shares=256)),
        (GUARANTEED, PodLimits(cpu_shares=512, cpu_quota_us=50_000, memory_bytes=64 << 20)),
        # One container without a memory limit: the pod has none either.
        (make_pod([limited("a", "1", "1Gi"), limited("b", "1")]), PodLimits(cpu_shares=2048, cpu_quota_us=200_000)),
        # A sidecar runs beside the mains; an init beside the sidecars before it.
        (
            make_pod(
                [limited("a", "100m", "1Gi")],
                [limited("s", "100m", "1Gi", restartPolicy="Always"), limited("i", "400m", "3Gi")],
            ),
            PodLimits(cpu_shares=512, cpu_quota_us=50_000, memory_bytes=4 << 30),
        ),
        # What is said of the pod as a whole counts.
        (
            make_pod(["a"], resources={"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}),
            PodLimits(cpu_shares=1024, cpu_quota_us=200_000, memory_bytes=1 << 30),
        ),
    ],
)
def test_limits_hold_for_the_pod_if_all_containers_have_one(pod: Any, limits: PodLimits) -> None:
    """RES-04."""
    assert pod_limits(pod, 0, GroupShape()) == limits


def test_processes_and_pages_are_counted() -> None:
    """RES-05: a size that nobody lists is 0."""
    huge = make_pod([container("a", resources={"limits": {"hugepages-2Mi": "8Mi", "cpu": 1}})])
    shape = GroupShape(controllers=ALL, hugepage_bytes=(2 << 20, 1 << 30))

    assert pod_limits(huge, 100, shape).hugepages == (("2MB", 8 << 20), ("1GB", 0))
    assert pod_limits(huge, 100, shape).pids == 100
    assert dict(hugepage_limits({"hugepages-1Gi": "1Gi"}, shape)) == {"2MB": 0, "1GB": 1 << 30}
    assert dict(hugepage_limits({}, GroupShape(hugepage_bytes=(2 << 20,)))) == {}, "nobody counts them"
    assert [page_name(size) for size in (64 << 10, 2 << 20, 1 << 30, 1000)] == ["64KB", "2MB", "1GB", "1000B"]


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (256, 10), (1024, 39), (2048, 79), (262144, 10000)])
def test_shares_as_weights(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


def test_the_writes_of_version_one() -> None:
    limits = PodLimits(cpu_shares=512, cpu_quota_us=50_000, memory_bytes=64 << 20, pids=50, hugepages=(("2MB", 0),))
    wish = wanted_group(limits, "/kepd/besteffort/podu1", ONE)
    told = [str(step) for step in wish.steps if not isinstance(step, MakeGroup)]

    assert told == [
        "write cpu/kepd/besteffort/cpu.shares 2",
        "write cpu/kepd/besteffort/podu1/cpu.shares 512",
        "write cpu/kepd/besteffort/podu1/cpu.cfs_period_us 100000",
        "write cpu/kepd/besteffort/podu1/cpu.cfs_quota_us 50000",
        "write memory/kepd/besteffort/podu1/memory.limit_in_bytes 67108864",
        "write pids/kepd/besteffort/podu1/pids.max 50",
        "write hugetlb/kepd/besteffort/podu1/hugetlb.2MB.limit_in_bytes 0",
    ]


def test_the_writes_of_version_two() -> None:
    wish = wanted_group(PodLimits(hugepages=(("2MB", 0),)), "/kepd/besteffort/podu1", TWO)

    assert [str(step) for step in wish.steps] == [
        "write cgroup.subtree_control +cpu +memory +pids +hugetlb",
        "make kepd",
        "write kepd/cgroup.subtree_control +cpu +memory +pids +hugetlb",
        "make kepd/besteffort",
        "write kepd/besteffort/cgroup.subtree_control +cpu +memory +pids +hugetlb",
        "make kepd/besteffort/podu1",
        "write kepd/besteffort/cpu.weight 1",
        "write kepd/besteffort/podu1/cpu.weight 1",
        "write kepd/besteffort/podu1/cpu.max max 100000",
        "write kepd/besteffort/podu1/memory.max max",
        "write kepd/besteffort/podu1/pids.max max",
        "write kepd/besteffort/podu1/hugetlb.2MB.max 0",
    ]


@pytest.mark.parametrize(
    ("path", "shape", "written"),
    [
        ("/kepd/podu1", ONE, []),
        ("/kepd/burstable/podu1", ONE, ["write cpu/kepd/burstable/cpu.shares 1024"]),
        ("/kepd/burstable/podu1", TWO, ["write kepd/burstable/cpu.weight 39"]),
        ("/kepd/besteffort/podu1", ONE, ["write cpu/kepd/besteffort/cpu.shares 2"]),
        (
            "/kepd.slice/kepd-burstable.slice/kepd-burstable-podu1.slice",
            TWO,
            ["write kepd.slice/kepd-burstable.slice/cpu.weight 39"],
        ),
        ("/kepd/burstable/podu1", GroupShape(controllers=frozenset({"memory"})), []),
    ],
)
def test_qualities_of_service_are_worth_what_they_ask_for(path: str, shape: GroupShape, written: list[str]) -> None:
    assert [str(step) for step in wanted_levels(path, shape, LevelNeeds(burstable_milli=1000)).steps] == written


@pytest.mark.parametrize(
    ("path", "shape", "written"),
    [
        ("/kepd/podu1", TWO, ["write kepd/memory.min 3000"]),
        ("/kepd/besteffort/podu1", TWO, ["write kepd/memory.min 3000"]),
        ("/kepd/burstable/podu1", TWO, ["write kepd/memory.min 3000", "write kepd/burstable/memory.min 1000"]),
        ("/above/kepd/podu1", TWO, ["write above/kepd/memory.min 3000"]),
        (
            "/kepd.slice/kepd-burstable.slice/kepd-burstable-podu1.slice",
            TWO,
            ["write kepd.slice/memory.min 3000", "write kepd.slice/kepd-burstable.slice/memory.min 1000"],
        ),
        ("/kepd/burstable/podu1", ONE, []),
        ("/kepd/burstable/podu1", GroupShape(version=2, controllers=frozenset({"cpu"})), []),
    ],
)
def test_the_groups_above_protect_what_their_pods_ask_for(path: str, shape: GroupShape, written: list[str]) -> None:
    """RES-08: the kernel protects a group only as far as those above it."""
    steps = [str(step) for step in wanted_levels(path, shape, LevelNeeds(burstable_bytes=1000, all_bytes=3000)).steps]

    assert [one for one in steps if "memory" in one] == written
    assert [str(one) for one in wanted_levels(path, shape, LevelNeeds()).steps if "memory" in str(one)] == []


def test_a_pod_with_memory_qos_is_protected_by_its_request() -> None:
    """RES-08."""
    pod = make_pod([container("app", resources={"requests": {"memory": "1Mi"}})])
    off, on = (pod_limits(pod, 0, TWO, is_protected=is_on) for is_on in (False, True))
    path = "/kepd/burstable/podu1"

    assert (off.protected_bytes, on.protected_bytes) == (None, 1 << 20)
    assert set(wanted_group(on, path, TWO).paths) - set(wanted_group(off, path, TWO).paths) == {
        f"{path.strip('/')}/memory.min"
    }
    assert room_for(on, PodLimits(protected_bytes=0)).protected_bytes == 1 << 20
    assert room_for(off, off).protected_bytes is None


def carry_out(tree: FakeControlGroups, wish: Any, most: int = 1000) -> int:
    """So many steps of the plan; how many it had."""
    plan = plan_group(wish, tree.read(wish.paths))
    for step in plan.steps[:most]:
        tree.make(step.path) if isinstance(step, MakeGroup) else tree.write(step.path, step.value)
    return len(plan.steps)


LIMITS = st.builds(
    PodLimits,
    cpu_shares=st.integers(2, 262_144),
    cpu_quota_us=st.just(0) | st.integers(1000, 10**7),
    memory_bytes=st.just(0) | st.integers(1, 1 << 40),
    pids=st.integers(0, 1000),
    hugepages=st.tuples(st.tuples(st.just("2MB"), st.integers(0, 100).map(lambda pages: pages << 21))),
)


@given(first=LIMITS, then=LIMITS, shape=st.sampled_from([ONE, TWO]), stopped=st.integers(0, 20))
def test_what_a_plan_has_brought_about_needs_nothing_more(
    first: PodLimits, then: PodLimits, shape: GroupShape, stopped: int
) -> None:
    """Also when kepd died after some of its steps, or the limits are others now."""
    tree, clean = FakeControlGroups(shape), FakeControlGroups(shape)
    path = "/kepd/burstable/podu1"
    carry_out(tree, wanted_group(first, path, shape), stopped)
    carry_out(tree, wanted_group(then, path, shape))
    carry_out(clean, wanted_group(then, path, shape))

    assert tree.files == clean.files
    assert carry_out(tree, wanted_group(then, path, shape)) == 0
    assert (
        str(plan_group(wanted_group(then, path, shape), tree.read(wanted_group(then, path, shape).paths))) == "nothing"
    )
