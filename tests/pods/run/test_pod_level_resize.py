# SPDX-License-Identifier: Apache-2.0
"""Other resources for a pod as a whole that runs (RSZ-01)."""

from pathlib import Path

import pytest

from agent.model.nodes.control_group import GroupShape
from agent.model.runtime.error import RuntimeCallFailed
from tests.fakes.cgroups import FakeControlGroups
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Plane, manifest, running
from tests.pods.run.test_cpu_burst import POD, WithGroups

QUOTA = "cpu.cfs_quota_us"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.pods.run.one_pod.resizing.RETRY_S", 0.05)


def whole(cpu: str, memory: str = "100Mi", request: str = "100m") -> bytes:
    given = f"resources: {{limits: {{cpu: {cpu}, memory: {memory}}}, requests: {{cpu: {request}, memory: 1Mi}}}}"
    return manifest("web", "i", more=", uid: web").replace(b"spec:\n", f"spec:\n  {given}\n".encode())


def quotas(cri: WithGroups) -> list[tuple[str, int]]:
    """Those that were written after the start, in their order, of the pod or of its container."""
    written = [one.split() for one in cri.groups.writes]
    return [
        ("pod" if path == f"cpu/{POD}/{QUOTA}" else "container", int(value))
        for path, value in written
        if path.endswith(QUOTA)
    ][1:]


def told(plane: Plane) -> list[tuple[str, str]]:
    return [(one.reason, one.container) for one in plane.events if one.reason.startswith(("Resize", "SandboxChanged"))]


async def test_the_group_grows_first_and_shrinks_last(tmp_path: Path) -> None:
    """RSZ-01, RES-06: in place, with the container that has no limit of its own."""
    cri = WithGroups(FakeControlGroups(GroupShape(has_cpu_burst=True)))
    manifests = FakeManifestDirectory({"/m/f.yaml": whole("500m")})
    async with running(cri, manifests, tmp_path / "logs", groups=cri.groups) as plane:
        await plane.until_phases(web="Running")
        first = plane.pod().containers[0].id
        for cpu, count in (("800m", 2), ("300m", 4)):
            manifests.put("/m/f.yaml", whole(cpu))
            await plane.until(lambda wanted=count: len(quotas(cri)) == wanted, f"{cpu} {quotas(cri)}")
        manifests.put("/m/f.yaml", whole("300m", "200Mi"))
        await plane.until(
            lambda: cri.groups.files[f"memory/{POD}/memory.limit_in_bytes"] == str(200 << 20), "more memory"
        )

        assert quotas(cri)[:4] == [("pod", 80_000), ("container", 80_000), ("container", 30_000), ("pod", 30_000)]
        assert (plane.pod().containers[0].id, plane.pod().resources.limits["memory"]) == (first, "200Mi")
        assert told(plane)[:4] == [
            ("ResizeStarted", ""), ("ResizeCompleted", ""), ("ResizeStarted", "a"), ("ResizeCompleted", "a"),
        ]  # fmt: skip


async def test_less_memory_than_is_used_is_refused_until_it_is_not(tmp_path: Path) -> None:
    """RSZ-01."""
    cri = WithGroups(FakeControlGroups(GroupShape(has_cpu_burst=True)))
    manifests = FakeManifestDirectory({"/m/f.yaml": whole("500m")})
    async with running(cri, manifests, tmp_path / "logs", groups=cri.groups) as plane:
        await plane.until_phases(web="Running")
        (container_id,) = cri._containers
        cri.used[container_id] = 60 << 20
        manifests.put("/m/f.yaml", whole("500m", "50Mi"))
        await plane.until(lambda: ("ResizeError", "a") in told(plane), "it is refused")
        assert cri.groups.files[f"memory/{POD}/memory.limit_in_bytes"] == str(100 << 20)
        cri.used[container_id] = 10 << 20
        await plane.until(lambda: cri.groups.files[f"memory/{POD}/memory.limit_in_bytes"] == str(50 << 20), "and done")


@pytest.mark.parametrize(("before", "after"), [("500m", "800m"), ("800m", "500m")])
async def test_a_kepd_that_begins_anew_between_two_steps_goes_on(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RSZ-01: whichever step it died before."""
    monkeypatch.setattr("agent.pods.run.one_pod.resizing.RETRY_S", 600.0)
    cri = WithGroups(FakeControlGroups(GroupShape(has_cpu_burst=True)))
    manifests = FakeManifestDirectory({"/m/f.yaml": whole(before)})
    async with running(cri, manifests, tmp_path / "logs", groups=cri.groups) as plane:
        await plane.until_phases(web="Running")
        run = plane.runner.keeper("default", "web-n").run  # type: ignore[union-attr]
        await plane.until(lambda: run.saved_memory == run.memory, "it is written down")
        cri.failures["UpdateContainerResources"] = RuntimeCallFailed("UpdateContainerResources", "not today")
        manifests.put("/m/f.yaml", whole(after))
        await plane.until(lambda: ("ResizeError", "a") in told(plane), "it is refused")
    async with running(cri, manifests, tmp_path / "logs", groups=cri.groups) as plane:
        await plane.until_phases(web="Running")
        wanted = str(int(after[:-1]) * 100)
        await plane.until(lambda: cri.groups.files[f"cpu/{POD}/{QUOTA}"] == wanted, "the pod")
        await plane.until(lambda: ("container", int(wanted)) in quotas(cri), "the container")
        await plane.until(lambda: not [one for one in plane.pod().conditions if "Resize" in one.type], "all is done")
        await plane.rounds()

        assert quotas(cri)[-1] == (("container" if after > before else "pod"), int(wanted))
        assert cri.stops == []


async def test_what_there_is_no_room_for_waits(tmp_path: Path) -> None:
    """The fake node has one processor."""
    cri = WithGroups(FakeControlGroups(GroupShape(has_cpu_burst=True)))
    manifests = FakeManifestDirectory({"/m/f.yaml": whole("3")})
    async with running(cri, manifests, tmp_path / "logs", groups=cri.groups) as plane:
        await plane.until_phases(web="Running")
        manifests.put("/m/f.yaml", whole("3", request="2"))
        await plane.until(lambda: ("ResizeInfeasible", "") in told(plane), "never")

        assert cri.groups.files[f"cpu/{POD}/cpu.shares"] == "102"
