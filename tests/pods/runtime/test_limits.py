# SPDX-License-Identifier: Apache-2.0
"""What containers may use: memory with its swap, pages, and the group of their pod when it cannot be made."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.config.sections.pods import Pods
from agent.model.nodes.control_group import GroupShape
from agent.pods.runtime.cri_config import container_resources
from agent.pods.runtime.cri_security import NodeShape
from agent.pods.runtime.qos import Needs, memory_qos
from agent.pods.runtime.slices import NO_LIMIT
from agent.pods.settings import PodNodeFacts, PodSettings
from tests.contract.fake_slices import FakeSlices
from tests.fakes.cgroups import FakeControlGroups
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import KnownRuntime, Slow, manifest, running
from tests.pods.pods import container, make_pod

GIB = 1 << 30


def resources(shape: GroupShape, given: dict[str, Any], *others: Any, **pods: Any) -> Any:
    pod = make_pod([container("app", resources=given), *others])
    facts = PodNodeFacts(memory_bytes=8 * GIB, groups=shape)
    known = NodeShape(
        settings=PodSettings(pods=Pods(log_directory="/logs", **pods), node="n", instance="me", facts=facts)
    )
    return container_resources(pod, pod.containers[0], pod.containers[0].fields.resources, known)


LIMITED = {"limits": {"memory": "1Gi"}, "requests": {"memory": "512Mi"}}
ONE = GroupShape(has_swap_limit=True, swap_bytes=4 * GIB)
TWO = GroupShape(version=2, has_swap_limit=True, swap_bytes=4 * GIB)


def test_version_one_counts_memory_and_swap_together() -> None:
    """KEP-2400: what may be swapped comes on top of the limit; without a limit the kernel has nothing to count."""
    asking = {"requests": {"memory": "1Gi"}}
    equal = {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi", "cpu": "1"}}
    assert resources(ONE, LIMITED).memory_swap_limit_in_bytes == GIB
    assert resources(ONE, LIMITED, swap="LimitedSwap").memory_swap_limit_in_bytes == GIB + GIB // 4
    assert resources(ONE, equal, swap="LimitedSwap").memory_swap_limit_in_bytes == GIB
    assert resources(ONE, LIMITED, swap="LimitedSwap", profile="kubelet").memory_swap_limit_in_bytes == GIB
    assert resources(ONE, {}, swap="LimitedSwap").memory_swap_limit_in_bytes == 0
    assert resources(ONE, asking, swap="LimitedSwap").memory_swap_limit_in_bytes == 0
    assert resources(GroupShape(), LIMITED).memory_swap_limit_in_bytes == 0, "nobody counts swap"


@pytest.mark.parametrize(
    ("given", "may_swap", "swap"),
    [
        (LIMITED, False, "0"),
        (LIMITED, True, str(GIB // 4)),
        ({"requests": {"memory": "2Gi"}}, True, str(GIB)),
        ({"requests": {"cpu": "1"}}, True, "0"),
        ({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi", "cpu": "1"}}, True, "0"),
        ({}, True, "0"),
    ],
)
def test_version_two_gives_swap_by_the_share_of_memory(given: dict[str, Any], may_swap: bool, swap: str) -> None:
    """KEP-2400: only containers of Burstable pods that ask for memory and may use more."""
    assert (
        resources(TWO, given, container("other"), swap="LimitedSwap" if may_swap else "NoSwap").unified[
            "memory.swap.max"
        ]
        == swap
    )


@pytest.mark.parametrize(
    ("request_bytes", "limit_bytes", "found"),
    [
        (0, 0, {}),
        (0, 4096, {}),
        (0, GIB, {"memory.high": GIB * 9 // 10 // 4096 * 4096}),
        (GIB, 0, {"memory.min": GIB, "memory.high": (GIB + 7 * GIB * 9 // 10) // 4096 * 4096}),
        (GIB, GIB, {"memory.min": GIB}),
        (GIB, 2 * GIB, {"memory.min": GIB, "memory.high": (GIB + GIB * 9 // 10) // 4096 * 4096}),
        (4095, 8192, {"memory.min": 4095, "memory.high": 4096}),
        (GIB - 4096, GIB, {"memory.min": GIB - 4096}),
        (9 * GIB, 0, {"memory.min": 9 * GIB}),
    ],
)
def test_memory_is_throttled_at_nine_tenths_of_what_is_above_the_request(
    request_bytes: int, limit_bytes: int, found: dict[str, int]
) -> None:
    """RES-08: in whole pages, of a node with 8 GiB, and never at or below the request itself."""
    needs = Needs(memory_request=request_bytes, memory_limit=limit_bytes)

    assert memory_qos(needs, 8 * GIB) == {name: str(size) for name, size in found.items()}


@pytest.mark.parametrize(
    ("shape", "has_qos", "given", "found"),
    [
        (ONE, True, LIMITED, set()),
        (TWO, False, LIMITED, set()),
        (TWO, True, LIMITED, {"memory.min", "memory.high"}),
        (TWO, True, {}, set()),
        (TWO, True, {"limits": {"memory": "1Gi", "cpu": "1"}}, {"memory.min"}),
    ],
)
def test_memory_is_protected_where_the_node_says_so(
    shape: GroupShape, has_qos: bool, given: dict[str, Any], found: set[str]
) -> None:
    """RES-08: version 2 alone."""
    told = resources(shape, given, memory_qos=has_qos).unified

    assert {name for name in told if name in ("memory.min", "memory.high")} == found


def test_swap_is_left_alone_where_nobody_counts_it() -> None:
    assert dict(resources(GroupShape(version=2), LIMITED).unified) == {"memory.oom.group": "1"}


@pytest.mark.parametrize(
    ("version", "single", "unified"), [(1, False, {}), (2, False, {"memory.oom.group": "1"}), (2, True, {})]
)
def test_out_of_memory_ends_the_container_unless_said_otherwise(version: int, single: bool, unified: dict) -> None:
    """RES-05."""
    assert dict(resources(GroupShape(version=version), {}, single_process_oom_kill=single).unified) == unified


def test_pages_of_sizes_that_are_not_listed_are_none() -> None:
    """RES-05."""
    shape = GroupShape(controllers=frozenset({"hugetlb"}), hugepage_bytes=(2 << 20, GIB))
    told = resources(shape, {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}}).hugepage_limits

    assert [(one.page_size, one.limit) for one in told] == [("2MB", 4 << 20), ("1GB", 0)]


async def test_a_pod_gets_its_group_before_its_sandbox_and_leaves_none(tmp_path: Path) -> None:
    """RES-04, GC-03."""
    groups, manifests = FakeControlGroups(), FakeManifestDirectory({"/m/f.yaml": manifest(grace_s=1)})
    async with running(Slow(), manifests, tmp_path / "logs", groups=groups, pod_pids_limit=70) as plane:
        await plane.until_phases(web="Running")
        (uid,) = plane.runner.keepers
        assert groups.files[f"pids/kepd/besteffort/pod{uid}/pids.max"] == "70"
        assert groups.files[f"cpu/kepd/besteffort/pod{uid}/cpu.shares"] == "2"
        assert groups.files["cpu/kepd/besteffort/cpu.shares"] == "2"
        manifests.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.runner.keepers, "gone")

        assert not any("pod" in group for group in groups.groups)


class Stubborn(FakeControlGroups):
    """Refuses one kind of limit."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file: str = file

    def write(self, path: str, value: str) -> None:
        self.refuses = {path} if path.endswith(self.file) else set()
        super().write(path, value)


async def test_a_pod_with_limits_does_not_run_without_them(tmp_path: Path) -> None:
    """It is told what is wrong, and tried again."""
    groups, cri = Stubborn("pids.max"), Slow()
    manifests = FakeManifestDirectory({"/m/f.yaml": manifest()})
    async with running(cri, manifests, tmp_path / "logs", groups=groups, pod_pids_limit=70) as plane:
        await plane.until(lambda: plane.events, "told")
        told = plane.events[0]
        assert told.reason == "FailedCreatePodContainer"
        assert told.message.startswith("the limits of the pod cannot be set: write pids/kepd/besteffort/pod")
        assert told.message.endswith("pids.max 70: Invalid argument")
        assert "RunPodSandbox" not in cri.calls
        groups.file = "nothing"
        await plane.until_phases(web="Running")


async def test_a_share_that_cannot_be_given_holds_nobody_up(tmp_path: Path) -> None:
    manifests = FakeManifestDirectory({"/m/f.yaml": manifest()})
    async with running(Slow(), manifests, tmp_path / "logs", groups=Stubborn("cpu.shares")) as plane:
        await plane.until_phases(web="Running")

        assert [one.message for one in plane.events if "no share of its own" in one.message] != []


def whole(resources: str) -> bytes:
    return (
        manifest("web", "i", grace_s=1)
        .decode()
        .replace("image: i}", f"image: i, resources: {{{resources}}}}}")
        .encode()
    )


async def test_where_systemd_manages_groups_its_slices_are_named_and_asked_for(tmp_path: Path) -> None:
    """RES-04, RES-09: the runtime would refuse any other parent, and systemd forgets what others write."""
    parents: list[str] = []

    class Noting(Slow):
        async def run_sandbox(self, config: Any, runtime_handler: str = "") -> str:
            parents.append(config.linux.cgroup_parent)
            return await super().run_sandbox(config, runtime_handler)

    groups, slices = FakeControlGroups(), FakeSlices()
    manifests = FakeManifestDirectory({"/m/f.yaml": whole("limits: {cpu: 155m, memory: 64Mi}, requests: {cpu: 100m}")})
    runtime = KnownRuntime(uses_systemd=True)
    async with running(Noting(), manifests, tmp_path / "logs", groups=groups, slices=slices, runtime=runtime) as plane:
        await plane.until_phases(web="Running")
        (uid,) = plane.runner.keepers
        pod = f"kepd-burstable-pod{uid}.slice"
        held = {unit: dict(one) for unit, one in slices.held.items()}
        manifests.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "the end of the pod")

    assert parents == [f"/kepd.slice/kepd-burstable.slice/{pod}"]
    assert held == {
        "kepd-burstable.slice": {"CPUShares": 102},
        pod: {"CPUShares": 102, "CPUQuotaPerSecUSec": 160_000, "MemoryLimit": 64 << 20, "TasksMax": NO_LIMIT},
    }
    assert slices.held == {"kepd-burstable.slice": {"CPUShares": 2}}, "the slice went with its pod"


async def test_a_pod_with_limits_does_not_run_where_systemd_cannot_be_asked(tmp_path: Path) -> None:
    """RES-04, RES-09."""
    groups, slices, runtime = FakeControlGroups(), FakeSlices(), KnownRuntime(uses_systemd=True)
    slices.refusal = "no connection to the system bus"
    manifests = FakeManifestDirectory({"/m/f.yaml": whole("limits: {memory: 64Mi}")})
    async with running(Slow(), manifests, tmp_path / "logs", groups=groups, slices=slices, runtime=runtime) as plane:
        await plane.until(lambda: any("limits of the pod cannot be set" in one.message for one in plane.events), "why")
        assert plane.phases == {"web-n": "Pending"}
        slices.refusal = ""
        await plane.until_phases(web="Running")


async def test_a_pod_that_is_found_running_is_made_known_to_systemd(tmp_path: Path) -> None:
    """RES-09: what an earlier version wrote into files would go with the next `daemon-reload`."""
    cri, groups, runtime = Slow(), FakeControlGroups(), KnownRuntime(uses_systemd=True)
    manifests = FakeManifestDirectory({"/m/f.yaml": whole("limits: {memory: 64Mi}")})
    async with running(cri, manifests, tmp_path / "logs", groups=groups, slices=FakeSlices(), runtime=runtime) as plane:
        await plane.until_phases(web="Running")
        (uid,) = plane.runner.keepers
    slices, answers = FakeSlices(), asyncio.Event()

    class Waiting(FakeSlices):
        async def hold(self, unit: str, properties: Any, *, anew: bool = False) -> None:
            await answers.wait()
            await slices.hold(unit, properties, anew=anew)

    async with running(cri, manifests, tmp_path / "logs", groups=groups, slices=Waiting(), runtime=runtime) as plane:
        await plane.until_ready()
        await asyncio.sleep(0)
        assert plane.phases == {"web-n": "Running"}, "no Service waits for systemd"
        answers.set()
        await plane.until(lambda: f"kepd-burstable-pod{uid}.slice" in slices.held, "the slice by name")


async def test_a_pod_stays_in_the_group_that_it_began_in(tmp_path: Path) -> None:
    """RES-04: a container that starts anew may have another quality of service; two groups would be two pods."""

    def sized(resources: str) -> bytes:
        text = manifest("web", "i", more=", uid: u-1", grace_s=1).decode()
        return text.replace("image: i}", f"image: i, resources: {{{resources}}}}}").encode()

    parents: list[str] = []

    class Noting(Slow):
        async def create_container(self, sandbox_id: str, config: Any, sandbox_config: Any) -> str:
            parents.append(sandbox_config.linux.cgroup_parent)
            return await super().create_container(sandbox_id, config, sandbox_config)

    cri, groups, manifests = Noting(), FakeControlGroups(), FakeManifestDirectory({"/m/f.yaml": sized("")})
    group = "kepd/besteffort/podu-1"
    async with running(cri, manifests, tmp_path / "logs", groups=groups) as plane:
        await plane.until_phases(web="Running")
        manifests.put("/m/f.yaml", sized("limits: {cpu: 1, memory: 1Gi}"))
        await plane.until(lambda: "Infeasible" in [one.reason for one in plane.pod().conditions], "a refusal")
    async with running(cri, manifests, tmp_path / "logs", groups=groups) as plane:
        await plane.until_phases(web="Running")
        cri.exit(plane.pod().containers[0].id, 1)
        plane.runner.rounds.due.set()
        await plane.until(lambda: plane.pod().containers[0].restart_count == 1, "again")
        assert parents == [f"/{group}"] * 2
        manifests.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.runner.keepers, "gone")

    assert not any("podu-1" in one for one in groups.groups)


async def test_all_burstable_pods_together_are_worth_what_they_ask_for(tmp_path: Path) -> None:
    """RES-04: as a kubelet weighs them against Guaranteed pods, also for a kepd that found them running."""

    def asking(name: str, cpu: str) -> bytes:
        text = manifest(name, "i", grace_s=1).decode()
        return text.replace("image: i}", f"image: i, resources: {{requests: {{cpu: {cpu}}}}}}}").encode()

    def worth() -> str:
        return groups.files["cpu/kepd/burstable/cpu.shares"]

    cri, groups = Slow(), FakeControlGroups()
    manifests = FakeManifestDirectory({"/m/a.yaml": asking("a", "500m"), "/m/b.yaml": asking("b", "1500m")})
    async with running(cri, manifests, tmp_path / "logs", groups=groups, cpus=4) as plane:
        await plane.until_phases(a="Running", b="Running")
        assert worth() == "2048"
    async with running(cri, manifests, tmp_path / "logs", groups=groups, cpus=4) as plane:
        await plane.until_phases(a="Running", b="Running")
        manifests.put("/m/c.yaml", asking("c", "1"))
        await plane.until_phases(a="Running", b="Running", c="Running")
        assert worth() == "3072"
        manifests.put("/m/b.yaml", None)
        await plane.until_phases(a="Running", c="Running")

    assert worth() == "1536"
