# SPDX-License-Identifier: Apache-2.0
"""Logs that grow and volumes that fill, and what follows a pod while it runs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.config.sections.pods import PodLogs
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.model.runtime.error import RuntimeCallFailed
from agent.pods.plan.scarcity.storage_use import DiskUse
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.measured import disk_use
from agent.pods.run.disk.trees import DiskPace
from agent.pods.run.housekeeping import Housekeeping
from agent.pods.run.one_pod.keeper import PodWorker
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import FakeNode, Plane, Slow, manifest, running


def housekeeping(plane: Plane, node: FakeNode | None = None) -> Housekeeping:
    return Housekeeping(plane.runner._context, lambda: list(plane.runner.keepers.values()), node or FakeNode())


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def with_small_volumes(*names: str) -> FakeManifestDirectory:
    """A pod for each name, with the uid `u-NAME`."""
    volumes = b"spec:\n  volumes: [{name: cache, emptyDir: {sizeLimit: 4Ki}}]\n"
    return FakeManifestDirectory(
        {f"/m/{name}.yaml": manifest(name, "i", more=f", uid: u-{name}").replace(b"spec:\n", volumes) for name in names}
    )


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


async def test_a_pod_that_takes_more_than_its_volume_may_have_ends(tmp_path: Path) -> None:
    """VOL-03."""
    volumes = "  volumes: [{name: cache, emptyDir: {sizeLimit: 4Ki}}, {name: free, emptyDir: {}}]\n"
    manifests = FakeManifestDirectory(
        {"/m/f.yaml": manifest("web", "i").replace(b"spec:\n", f"spec:\n{volumes}".encode())}
    )
    async with running(Slow(), manifests, tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")
        (keeper,) = plane.runner.keepers.values()
        for name in ("cache", "free"):
            write(one(tmp_path / "logs-pods", f"pods/*/volumes/*/{name}") / "file", "x" * 100)
        await housekeeping(plane).check_volumes(keeper)
        assert plane.phases == {"web-n": "Running"}, "what fits is no reason"
        write(one(tmp_path / "logs-pods", "pods/*/volumes/*/cache") / "file", "x" * 9000)
        await housekeeping(plane).check_volumes(keeper)
        await plane.until_phases(web="Failed")
        pod: PodState = plane.pod()

        assert (pod.reason, pod.message) == ("Evicted", 'Usage of EmptyDir volume "cache" exceeds the limit "4Ki". ')


async def test_a_volume_that_takes_long_to_count_delays_no_other_pod_and_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP-18."""
    monkeypatch.setattr("agent.pods.run.housekeeping.VOLUME_PERIOD_S", 0.01)
    may_end, rotated = asyncio.Event(), []
    check = Housekeeping.check_volumes

    async def checked(self: Housekeeping, keeper: PodWorker) -> None:
        if keeper.run.pod.uid == "u-slow":
            await may_end.wait()
        await check(self, keeper)

    monkeypatch.setattr(Housekeeping, "check_volumes", checked)
    async with running(
        Slow(), with_small_volumes("slow", "good"), tmp_path / "logs", logs=PodLogs(interval=0.01)
    ) as plane:
        await plane.until_phases(slow="Running", good="Running")
        logs = plane.runner._context.files.logs
        monkeypatch.setattr(logs, "is_full", lambda path, _most: rotated.append(path.parent.parent.name) or False)
        write(one(tmp_path / "logs-pods", "pods/u-good/volumes/*/cache") / "file", "x" * 9000)
        await plane.until_phases(slow="Running", good="Failed")
        rotated.clear()
        await plane.until(lambda: any("slow" in name for name in rotated), "a look at its log")
        may_end.set()


async def test_a_check_that_fails_for_one_pod_ends_no_others_and_not_the_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP-3."""
    monkeypatch.setattr("agent.pods.run.housekeeping.VOLUME_PERIOD_S", 0.01)
    async with running(
        Slow(), with_small_volumes("bad", "good"), tmp_path / "logs", logs=PodLogs(interval=0.01)
    ) as plane:
        await plane.until_phases(bad="Running", good="Running")

        def used(files: PodFiles, pod: PodSpec, logs: Path, pace: DiskPace) -> DiskUse:
            if pod.uid == "u-bad":
                raise RecursionError("maximum recursion depth exceeded")
            return disk_use(files, pod, logs, pace)

        monkeypatch.setattr("agent.pods.run.disk.measured.disk_use", used)
        write(one(tmp_path / "logs-pods", "pods/u-good/volumes/*/cache") / "file", "x" * 9000)
        await plane.until_phases(bad="Running", good="Failed")


LIMITED = """apiVersion: v1
kind: Pod
metadata: {name: web, uid: u-web}
spec:
  containers:
  - {name: a, image: i, resources: {limits: {ephemeral-storage: 8Ki}}}
  - {name: b, image: i, resources: {limits: {ephemeral-storage: 1Mi}}}
"""


@pytest.mark.parametrize(
    ("of_a", "of_b", "text"),
    [
        (8 << 10, 0, ""),
        ((8 << 10) + 1, 0, 'Container a exceeded its local ephemeral storage limit "8Ki". '),
        (0, 2 << 20, "Pod ephemeral local storage usage exceeds the total limit of containers 1032Ki. "),
    ],
)
async def test_a_pod_that_writes_more_than_its_containers_may_ends(
    tmp_path: Path, of_a: int, of_b: int, text: str
) -> None:
    """EVN-13: layers, logs and volumes of a pod against the limits of its containers, in a kubelet's words."""
    node = FakeNode()
    manifests = FakeManifestDirectory({"/m/f.yaml": LIMITED.encode()})
    async with running(Slow(), manifests, tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")
        (keeper,) = plane.runner.keepers.values()
        node.layer_bytes = {one.id: of_a if one.name == "a" else of_b for one in keeper.run.seen.instances}
        await housekeeping(plane, node).check_volumes(keeper)
        await plane.until_phases(web="Failed" if text else "Running")
        assert plane.pod().message == text


class TestLogs:
    """CLG-02: of containers that run."""

    async def rotated(self, tmp_path: Path, cri: Slow) -> tuple[list[str], Plane]:
        manifests = FakeManifestDirectory({"/m/f.yaml": manifest("web", "i")})
        async with running(cri, manifests, tmp_path / "logs", logs=PodLogs(max_size=10)) as plane:
            await plane.until_phases(web="Running")
            (keeper,) = plane.runner.keepers.values()
            folder = one(tmp_path / "logs", "default_web-n_*/a")
            write(folder / "0.log", "short")
            await housekeeping(plane).rotate_logs(keeper)
            assert names(folder) == ["0.log"]
            write(folder / "0.log", "long enough")
            await housekeeping(plane).rotate_logs(keeper)
            return names(folder), plane

    async def test_a_full_one_is_moved_and_the_runtime_told(self, tmp_path: Path) -> None:
        cri = Slow()
        found, _ = await self.rotated(tmp_path, cri)

        assert [name[:6] for name in found] == ["0.log."]
        assert cri.calls.count("ReopenContainerLog") == 1

    async def test_where_the_runtime_refuses_the_log_gets_its_name_back(self, tmp_path: Path) -> None:
        cri = Slow()
        cri.failures["ReopenContainerLog"] = RuntimeCallFailed("ReopenContainerLog", "no")
        found, _ = await self.rotated(tmp_path, cri)

        assert found == ["0.log"]


class TwoAddresses(Slow):
    """A network with both families."""

    async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus:
        status = await super().sandbox_status(sandbox_id)
        del status.network.additional_ips[:]
        status.network.additional_ips.add(ip="fd00::2")
        return status


async def test_all_addresses_are_told(tmp_path: Path) -> None:
    """NET-01, ENV-03: also by a kepd that found the pod running."""
    env = "env: [{name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}]"
    text = manifest("web", "i").decode().replace("image: i}", f"image: i, {env}}}")
    cri, manifests = TwoAddresses(), FakeManifestDirectory({"/m/f.yaml": text.encode()})
    for _ in range(2):
        async with running(cri, manifests, tmp_path / "logs") as plane:
            await plane.until_phases(web="Running")
            (keeper,) = plane.runner.keepers.values()

            assert keeper.run.facts.pod_ips == ("10.0.0.2", "fd00::2")
    hosts = one(tmp_path / "logs-pods", "pods/*/etc-hosts")

    assert lines(hosts)[-2:] == ["10.0.0.2\tweb-n", "fd00::2\tweb-n"]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


async def test_on_the_nodes_network_a_pod_has_the_nodes_address(tmp_path: Path) -> None:
    class NoAddress(Slow):
        async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus:
            status = await super().sandbox_status(sandbox_id)
            status.network.ip = ""
            status.linux.namespaces.options.network = pb.NODE
            return status

    text = manifest("web", "i").replace(b"spec:\n", b"spec:\n  hostNetwork: true\n")
    async with running(NoAddress(), FakeManifestDirectory({"/m/f.yaml": text}), tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")

        assert plane.pod().ip == "192.0.2.1"


async def test_labels_that_change_in_place_are_seen_in_volumes(tmp_path: Path) -> None:
    """VOL-07, MAN-11."""

    def labelled(value: str) -> bytes:
        item = "{path: labels, fieldRef: {fieldPath: metadata.labels}}"
        volumes = f"  volumes: [{{name: facts, downwardAPI: {{items: [{item}]}}}}]\n"
        text = manifest("web", "i", more=f", uid: u-1, labels: {{app: {value}}}")
        return text.replace(b"spec:\n", f"spec:\n{volumes}".encode())

    manifests = FakeManifestDirectory({"/m/f.yaml": labelled("one")})
    async with running(Slow(), manifests, tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")
        file = one(tmp_path / "logs-pods", "pods/u-1/volumes/*/facts") / "labels"
        assert lines(file) == ['app="one"']
        manifests.put("/m/f.yaml", labelled("two"))
        await plane.until(lambda: lines(file) == ['app="two"'], "the volume follows")

        assert plane.pod().containers[0].restart_count == 0


async def test_nothing_is_ready_before_everything_was_read_and_seen(tmp_path: Path) -> None:
    """MAN-13: nor is anything taken for an orphan."""

    class Late(FakeManifestDirectory):
        async def news(self) -> Any:
            async for snapshot in super().news():
                if not snapshot.look.files:
                    continue
                yield snapshot

    cri, manifests = Slow(), Late({"/m/f.yaml": manifest("web", "i")})
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")
    late = Late()
    async with running(cri, late, tmp_path / "logs") as plane:
        plane.runner.rounds.due.set()
        assert plane.state.value != "ready"
        assert cri.stops == []
        late.put("/m/f.yaml", manifest("web", "i"))
        await plane.until_ready()

        assert (plane.phases, cri.stops) == ({"web-n": "Running"}, [])
