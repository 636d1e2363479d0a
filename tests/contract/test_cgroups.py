# SPDX-License-Identifier: Apache-2.0
"""Control groups: the kernel's tree and the one in memory keep, round and refuse the same."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.cgroups.driver import ControlGroups
from agent.model.nodes.control_group import GroupShape
from agent.pods.runtime.pod_group import LevelNeeds, MakeGroup, PodLimits, plan_group, wanted_group
from tests.fakes.cgroups import FakeControlGroups

LIMITS = PodLimits(cpu_shares=512, cpu_quota_us=50_000, memory_bytes=(64 << 20) + 1, pids=50)
NONE = PodLimits(cpu_shares=1024)


EVERY = frozenset({"cpu", "memory", "pids"})


@pytest.fixture(params=["fake", "fake of version 2", pytest.param("kernel", marks=pytest.mark.node)])
def groups(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "fake":
        yield FakeControlGroups(GroupShape(has_cpu_burst=True))
        return
    if request.param == "fake of version 2":
        yield FakeControlGroups(GroupShape(version=2, controllers=EVERY, has_cpu_burst=True))
        return
    real = ControlGroups()
    yield real
    real.remove(root())


def root() -> str:
    return f"kepd-test-{os.getpid()}"


def apply(groups: Any, limits: PodLimits) -> int:
    wish = wanted_group(limits, f"/{root()}/besteffort/podu1", groups.shape())
    plan = plan_group(wish, groups.read(wish.paths))
    for step in plan.steps:
        groups.make(step.path) if isinstance(step, MakeGroup) else groups.write(step.path, step.value)
    return len(plan.steps)


def test_a_plan_is_carried_out_once(groups: Any) -> None:
    """RES-04: nothing is left to do, also after a change of limits."""
    for limits in (LIMITS, NONE, LIMITS):
        assert apply(groups, limits) > 0
        assert apply(groups, limits) == 0


def test_a_limit_is_what_the_kernel_says_it_is(groups: Any) -> None:
    apply(groups, LIMITS)
    prefix = "memory/" if groups.shape().version == 1 else ""
    file = "memory.limit_in_bytes" if groups.shape().version == 1 else "memory.max"
    path = f"{prefix}{root()}/besteffort/podu1/{file}"

    assert groups.read([path])[path].strip() == str(64 << 20)


def test_memory_that_is_protected_is_what_the_kernel_says_it_is(groups: Any) -> None:
    """RES-08: the pod, the quality of service above it and kepd's root; version 1 has no such thing."""
    group = f"{root()}/burstable/podu1"
    needs = LevelNeeds(burstable_milli=100, burstable_bytes=2 << 20, all_bytes=(3 << 20) + 5)
    for limits in (PodLimits(protected_bytes=(1 << 20) + 1), PodLimits(protected_bytes=0)):
        wanted = wanted_group(limits, f"/{group}", groups.shape(), needs)
        for step in plan_group(wanted, groups.read(wanted.paths)).steps:
            groups.make(step.path) if isinstance(step, MakeGroup) else groups.write(step.path, step.value)
        assert plan_group(wanted, groups.read(wanted.paths)).steps == ()

    paths = [f"{place}/memory.min" for place in (group, f"{root()}/burstable", root())]
    told = [text and text.strip() for text in groups.read(paths).values()]
    assert told == ([None] * 3 if groups.shape().version == 1 else ["0", str(2 << 20), str(3 << 20)])


def test_what_is_wrong_is_refused(groups: Any) -> None:
    apply(groups, NONE)
    prefix = "pids/" if groups.shape().version == 1 else ""
    place = f"{prefix}{root()}/besteffort/podu1"
    with pytest.raises(OSError, match="Invalid argument"):
        groups.write(f"{place}/pids.max", "many")
    with pytest.raises(FileNotFoundError):
        groups.write(f"{prefix}{root()}/none/pids.max", "1")

    assert groups.read([f"{place}/pids.max"])[f"{place}/pids.max"].strip() == "max"


def test_a_burst_is_at_most_the_quota_in_whichever_order_they_change(groups: Any) -> None:
    """RES-07: the kernel refuses both a burst above the quota and a quota below the burst."""
    large = PodLimits(cpu_quota_us=50_000, cpu_burst_us=40_000)
    for limits in (large, PodLimits(cpu_quota_us=20_000, cpu_burst_us=20_000), large, NONE, large):
        assert apply(groups, limits) > 0
        assert apply(groups, limits) == 0
    place = f"cpu/{root()}/besteffort/podu1" if groups.shape().version == 1 else f"{root()}/besteffort/podu1"
    quota, burst = ("cpu.cfs_quota_us", "cpu.cfs_burst_us")
    if groups.shape().version == 2:
        quota, burst = "cpu.max", "cpu.max.burst"
    for file, value in ((quota, "30000"), (burst, "60000")):
        with pytest.raises(OSError, match="Invalid argument"):
            groups.write(f"{place}/{file}", value if file != "cpu.max" else f"{value} 100000")


def test_groups_go_with_everything_below(groups: Any) -> None:
    """GC-03."""
    apply(groups, LIMITS)
    wish = wanted_group(LIMITS, f"/{root()}/besteffort/podu1", groups.shape())
    groups.remove(f"/{root()}/besteffort/podu1")
    left = groups.read(wish.paths)

    assert all(text is None for path, text in left.items() if "podu1" in path)
    assert any(text is not None for path, text in left.items() if "podu1" not in path)


def test_empty_groups_of_a_pod_go_in_every_hierarchy(tmp_path: Path) -> None:
    """GC-03; a group with something in it cannot be removed, and others are not touched."""
    for hierarchy in (".", "cpu", "memory"):
        (tmp_path / hierarchy / "kepd" / "podu1" / "inner").mkdir(parents=True)
        (tmp_path / hierarchy / "kepd" / "podu2").mkdir()
    (tmp_path / "cpu" / "kepd" / "podu1" / "tasks").touch()
    for group in ("", "/", "/../kepd/podu2", "/kepd/podu1"):
        ControlGroups(tmp_path).remove(group)

    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("pod*"))
    assert left == ["cpu/kepd/podu1", "cpu/kepd/podu2", "kepd/podu2", "memory/kepd/podu2"]


def test_groups_nested_deeper_than_the_interpreter_recurses_go_too(tmp_path: Path) -> None:
    """FP-3: a container may nest groups of its own as deep as it likes."""
    place = tmp_path / "cpu" / "kepd" / "podu1"
    place.mkdir(parents=True)
    deep = str(place)
    for _ in range(1200):
        deep += "/d"
        os.mkdir(deep)  # noqa: PTH102  # a path of so many parts takes long to compare
    ControlGroups(tmp_path).remove("/kepd/podu1")

    assert not place.exists()


def test_a_tree_of_version_two_on_disk(tmp_path: Path) -> None:
    """Where the kernel has only the other version, files that are there already stand for it."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "system.slice").mkdir()
    (tmp_path / "system.slice" / "memory.swap.max").write_text("max\n")
    (tmp_path / "system.slice" / "cpu.max.burst").write_text("0\n")
    groups = ControlGroups(tmp_path)
    shape = groups.shape()
    wish = wanted_group(LIMITS, "/kepd/podu1", shape)
    for path in (
        "kepd/podu1/cpu.weight",
        "kepd/podu1/cpu.max",
        "kepd/podu1/memory.max",
        "kepd/podu1/pids.max",
        "kepd/podu1/cpu.max.burst",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for path in ("cgroup.subtree_control", "kepd/cgroup.subtree_control"):
        (tmp_path / path).touch()
    for step in plan_group(wish, groups.read(wish.paths)).steps:
        groups.make(step.path) if isinstance(step, MakeGroup) else groups.write(step.path, step.value)

    assert (shape.version, shape.controllers, shape.has_swap_limit) == (2, {"cpu", "memory", "pids"}, True)
    assert (shape.has_cpu_burst, (tmp_path / "kepd/podu1/cpu.max.burst").read_text()) == (True, "0")
    assert (tmp_path / "kepd/podu1/cpu.max").read_text() == "50000 100000"
    assert (tmp_path / "kepd/podu1/memory.max").read_text() == str((64 << 20) + 1)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../b"])
def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="is not inside"):
        ControlGroups(tmp_path).make(path)
