# SPDX-License-Identifier: Apache-2.0
"""Bursts of containers, from the annotation to the files of their groups (RES-07)."""

from pathlib import Path

import pytest

from agent.model.nodes.control_group import GroupShape
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.cgroups import FakeControlGroups
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Plane, Slow, manifest, running

ONE, TWO = GroupShape(has_cpu_burst=True), GroupShape(version=2, has_cpu_burst=True)
POD = "kepd/burstable/podweb"


class WithGroups(Slow):
    """A runtime that makes a group for each container and gives it its quota; `layout` is how it names groups."""

    def __init__(self, groups: FakeControlGroups, layout: str = "{}") -> None:
        super().__init__()
        self.groups = groups
        self.layout = layout

    def group(self, container_id: str) -> str:
        place = f"{POD}/{self.layout.format(container_id)}"
        return place if self.groups.shape().version > 1 else f"cpu/{place}"

    async def start_container(self, container_id: str) -> None:
        if self.groups.shape().version > 1:
            self.groups.write(f"{POD}/cgroup.subtree_control", "+cpu")
        self.groups.make(self.group(container_id))
        await super().start_container(container_id)

    async def update_resources(self, container_id: str, resources: pb.LinuxContainerResources) -> None:
        quota = resources.cpu_quota
        if self.groups.shape().version > 1:
            self.groups.write(f"{self.group(container_id)}/cpu.max", f"{quota} 100000")
        else:
            self.groups.write(f"{self.group(container_id)}/cpu.cfs_quota_us", str(quota))
        await super().update_resources(container_id, resources)

    @property
    def bursts(self) -> dict[str, str]:
        """Of the pod and of its containers."""
        return {
            path.removeprefix("cpu/").removeprefix(POD).rpartition("/")[0]: text
            for path, text in self.groups.files.items()
            if "burst" in path.rpartition("/")[2]
        }


def limited(cpu: str, burst: str = "") -> bytes:
    note = f", annotations: {{kepd.dev/cpu-burst.a: {burst}}}" if burst else ""
    text = manifest("web", "i", more=f", uid: web{note}").decode()
    more = f"resources: {{limits: {{cpu: {cpu}}}, requests: {{cpu: 10m}}}}"
    return text.replace("image: i}", f"image: i, {more}}}").encode()


async def until_bursts(plane: Plane, cri: WithGroups, burst: int) -> None:
    wanted = {"": str(burst), f"/{cri.layout.format(plane.pod().containers[0].id)}": str(burst)}
    await plane.until(lambda: wanted.items() <= cri.bursts.items(), f"bursts {wanted} {cri.bursts}")


@pytest.mark.parametrize("shape", [ONE, TWO], ids=["version1", "version2"])
@pytest.mark.parametrize("layout", ["{}", "cri-containerd-{}.scope", "crio-{}", "crio-{}.scope"])
async def test_container_and_pod_have_the_burst_whatever_is_edited(
    shape: GroupShape, layout: str, tmp_path: Path
) -> None:
    """RES-07: with another limit, above and below, with another annotation, and without one."""
    cri = WithGroups(FakeControlGroups(shape), layout)
    manifests = FakeManifestDirectory({"/m/f.yaml": limited("500m", "40ms")})
    async with running(cri, manifests, tmp_path / "logs", groups=cri.groups, cpus=4) as plane:
        await plane.until_phases(web="Running")
        await until_bursts(plane, cri, 40_000)
        for cpu, burst, wanted in (
            ("200m", "20ms", 20_000),
            ("1", "80ms", 80_000),
            ("1", "5ms", 5_000),
            ("300m", "31ms", 0),
            ("300m", "30ms", 30_000),
            ("300m", "", 0),
        ):
            manifests.put("/m/f.yaml", limited(cpu, burst))
            await until_bursts(plane, cri, wanted)
        told = [event.message for event in plane.events if event.reason in ("ResizeError", "InvalidAnnotation")]
        completed = [event.reason for event in plane.events if event.reason == "ResizeCompleted"]

        assert told == ["kepd.dev/cpu-burst.a: '31ms' is too much for 'a'; expected at most 30ms, its quota of 100ms"]
        assert len(completed) == 3, "a burst alone is no resize"
        assert plane.pod().containers[0].restart_count == 0


async def test_a_burst_is_brought_about_by_the_next_kepd_and_for_the_next_instance(tmp_path: Path) -> None:
    """RES-07."""
    cri = WithGroups(FakeControlGroups(ONE))
    manifests = FakeManifestDirectory({"/m/f.yaml": limited("500m", "40ms")})
    async with running(cri, manifests, tmp_path / "logs", groups=cri.groups) as plane:
        await plane.until_phases(web="Running")
        await until_bursts(plane, cri, 40_000)
        run = plane.runner.keeper("default", "web-n").run  # type: ignore[union-attr]
        await plane.until(lambda: run.saved_memory == run.memory, "it is written down")
    manifests.put("/m/f.yaml", limited("500m"))
    async with running(cri, manifests, tmp_path / "logs", groups=cri.groups) as plane:
        await plane.until_phases(web="Running")
        await until_bursts(plane, cri, 0)
        manifests.put("/m/f.yaml", limited("500m", "10ms"))
        await until_bursts(plane, cri, 10_000)
        cri.exit(plane.pod().containers[0].id, 1)
        plane.runner.rounds.due.set()
        await plane.until(lambda: plane.pod().containers[0].restart_count == 1, "again")
        await until_bursts(plane, cri, 10_000)


async def test_a_pod_runs_without_its_burst_where_it_cannot_be_had(tmp_path: Path) -> None:
    """RES-07: no bursts in the kernel, or a runtime whose groups nobody knows; each is told once."""
    for shape, reason in ((GroupShape(), "InvalidAnnotation"), (ONE, "ResizeError")):
        cri = WithGroups(FakeControlGroups(shape), "elsewhere-{}")
        manifests = FakeManifestDirectory({"/m/f.yaml": limited("500m", "40ms")})
        async with running(cri, manifests, tmp_path / reason, groups=cri.groups) as plane:
            await plane.until_phases(web="Running")
            await plane.until(lambda wanted=reason: wanted in [one.reason for one in plane.events], "told")
            await plane.rounds()

            assert [one.reason for one in plane.events].count(reason) == 1
            assert plane.phases == {"web-n": "Running"}
