# SPDX-License-Identifier: Apache-2.0
"""What a pod may ask of the runtime beyond containers: images as volumes, names, pages, signals, last words."""

from pathlib import Path
from typing import Any

import pytest

from agent.model.runtime.features import RuntimeFeatures
from agent.pods.runtime.environment import ConfigProblem, PodFacts
from agent.pods.runtime.network_files import kernel_name
from agent.pods.runtime.volume_plan import page_size_of, plan_volumes
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import KnownRuntime, manifest, running
from tests.pods.pods import container, make_pod
from tests.pods.runtime.test_user_ranges import Noting


def with_volume(volume: str, mount: str = "") -> bytes:
    text = manifest("web", "i", grace_s=1).decode().replace("image: i}", f"image: i, volumeMounts: [{{{mount}}}]}}")
    return f"{text}  volumes: [{{{volume}}}]\n".encode()


IMAGE = with_volume("name: v, image: {reference: 'data:1'}", "name: v, mountPath: /data, subPath: etc")
NEW = KnownRuntime(name="containerd", version="2.1.3")


async def test_an_image_is_pulled_and_mounted_by_its_id(tmp_path: Path) -> None:
    """VOL-09."""
    cri, manifests = Noting(), FakeManifestDirectory({"/m/f.yaml": IMAGE})
    cri.registry.add("data:1")
    async with running(cri, manifests, tmp_path / "logs", runtime=NEW) as plane:
        await plane.until_phases(web="Running")
    (mount,) = [one for one in cri.containers[0].mounts if one.container_path == "/data"]
    known = await cri.image_status("data:1")

    assert known is not None
    assert (mount.image.image, mount.image.user_specified_image) == (known.id, "data:1")
    assert (mount.image_sub_path, mount.readonly, mount.host_path) == ("etc", True, "")
    assert [image for image, _, _ in cri.pulls] == ["data:1", "i"]


@pytest.mark.parametrize(
    ("runtime", "reason", "text"),
    [
        (KnownRuntime(name="containerd", version="1.6.20~ds1"), "CreateContainerConfigError",
         'volume "v" is an image, which containerd 1.6.20~ds1 cannot mount; containerd 2.1 and CRI-O 1.31 can'),
        (NEW, "ErrImagePull", 'failed to resolve image "data:1"'),
    ],
)  # fmt: skip
async def test_an_image_that_cannot_be_had_is_told_on_its_container(
    tmp_path: Path, runtime: Any, reason: str, text: str
) -> None:
    cri, manifests = Noting(), FakeManifestDirectory({"/m/f.yaml": IMAGE})
    async with running(cri, manifests, tmp_path / "logs", runtime=runtime) as plane:
        await plane.until(lambda: plane.phases and plane.pod().containers[0].message, "told")
        told = plane.pod().containers[0]

        assert (told.reason, told.message[: len(text)]) == (reason, text)
        assert cri.containers == []


@pytest.mark.parametrize(
    ("name", "version", "can"),
    [
        ("containerd", "1.7.24", False), ("containerd", "2.0.5", False), ("containerd", "v2.1.0-rc.1", True),
        ("containerd", "2.10.0", True), ("cri-o", "1.30.1", False), ("cri-o", "1.31.0", True), ("other", "9.9", True),
    ],
)  # fmt: skip
def test_which_runtimes_mount_images(name: str, version: str, can: bool) -> None:
    assert RuntimeFeatures(name=name, version=version).has_image_volumes is can


@pytest.mark.parametrize(
    ("given", "runtime", "recursive", "reason"),
    [
        ("Enabled", KnownRuntime(recursive_read_only=frozenset({""})), True, ""),
        ("Enabled", KnownRuntime(), False, "CreateContainerConfigError"),
        ("IfPossible", KnownRuntime(recursive_read_only=frozenset({""})), True, ""),
        ("IfPossible", KnownRuntime(), False, ""),
        ("Disabled", KnownRuntime(recursive_read_only=frozenset({""})), False, ""),
    ],
)
async def test_read_only_all_the_way_down_where_it_is_possible(
    tmp_path: Path, given: str, runtime: Any, recursive: bool, reason: str
) -> None:
    """VOL-09."""
    mount = f"name: v, mountPath: /data, readOnly: true, recursiveReadOnly: {given}"
    cri, manifests = Noting(), FakeManifestDirectory({"/m/f.yaml": with_volume("name: v, emptyDir: {}", mount)})
    async with running(cri, manifests, tmp_path / "logs", runtime=runtime) as plane:
        if reason:
            await plane.until(lambda: plane.phases and plane.pod().containers[0].reason == reason, "told")
            return
        await plane.until_phases(web="Running")
    (found,) = [one for one in cri.containers[0].mounts if one.container_path == "/data"]

    assert (found.readonly, found.recursive_read_only) == (True, recursive)


class TestNames:
    @pytest.mark.parametrize(
        ("spec", "name"),
        [
            ({"setHostnameAsFQDN": True, "subdomain": "s"}, "web.s.default.svc.cluster.local"),
            ({"setHostnameAsFQDN": True, "subdomain": "s", "hostname": "h"}, "h.s.default.svc.cluster.local"),
            ({"setHostnameAsFQDN": True}, "web"),
            ({"subdomain": "s"}, "web"),
            ({"setHostnameAsFQDN": True, "subdomain": "s", "hostNetwork": True}, ""),
        ],
    )
    def test_the_full_name_is_for_those_who_ask(self, spec: dict[str, Any], name: str) -> None:
        assert kernel_name(make_pod(**spec), "cluster.local") == name

    def test_a_name_that_the_kernel_cannot_have_is_told(self) -> None:
        pod = make_pod(setHostnameAsFQDN=True, subdomain="s" * 40)
        with pytest.raises(ConfigProblem, match="has 70 characters, and the name of a host at most 64") as told:
            kernel_name(pod, "cluster.local")

        assert told.value.reason == "FailedCreatePodSandBox"


class TestPages:
    """VOL-02."""

    @staticmethod
    def pod(*sizes: str) -> Any:
        limits = {f"hugepages-{size}": size for size in sizes}
        return make_pod([container("app", resources={"limits": {"cpu": 1, **limits}})])

    def test_a_medium_names_its_size_or_has_the_only_one(self) -> None:
        assert page_size_of(self.pod("2Mi"), "HugePages", "v") == 2 << 20
        assert page_size_of(self.pod("2Mi", "1Gi"), "HugePages-1Gi", "v") == 1 << 30
        assert page_size_of(self.pod("2Mi"), "Memory", "v") == 0
        (planned,) = plan_volumes(
            make_pod(
                [container("app", resources={"limits": {"cpu": 1, "hugepages-2Mi": "4Mi"}})],
                volumes=[{"name": "v", "emptyDir": {"medium": "HugePages", "sizeLimit": "4Mi"}}],
            ),
            {},
            PodFacts(),
        )
        assert (planned.page_bytes, planned.limit_bytes, planned.tmpfs_bytes) == (2 << 20, 4 << 20, None)

    @pytest.mark.parametrize(
        ("sizes", "medium", "word"),
        [((), "HugePages", "none"), (("2Mi", "1Gi"), "HugePages", "several"), (("2Mi",), "HugePages-1Gi", "others")],
    )
    def test_pages_that_nobody_asked_for_are_told(self, sizes: tuple[str, ...], medium: str, word: str) -> None:
        with pytest.raises(ConfigProblem, match=f"the containers ask for {word} of such pages"):
            page_size_of(self.pod(*sizes), medium, "v")


def say(path: str, text: str) -> None:
    """A container's last words, from outside."""
    Path(path).write_text(text)


SIGNAL = manifest("web", "i", "i", grace_s=1).decode().replace("spec:\n", "spec:\n  os: {name: linux}\n")
SIGNAL = SIGNAL.replace("image: i}", "image: i, lifecycle: {stopSignal: SIGUSR1}}")


@pytest.mark.parametrize("heeds", [True, False])
async def test_a_signal_without_effect_is_told_once(tmp_path: Path, heeds: bool) -> None:
    """TRM-24: the runtime tells the signal that counts, or does not know what that is."""

    class Runtime(Noting):
        async def container_status(self, container_id: str) -> pb.ContainerStatus:
            status = await super().container_status(container_id)
            if heeds:
                status.stop_signal = pb.SIGUSR1
            return status

    manifests = FakeManifestDirectory({"/m/f.yaml": SIGNAL.encode()})
    async with running(Runtime(), manifests, tmp_path / "logs", runtime=KnownRuntime(name="old", version="1")) as plane:
        await plane.until_phases(web="Running")
        told = [one.message for one in plane.events if one.reason == "StopSignalIgnored"]
        shown = {one.stop_signal for one in plane.pod().containers}

    text = "lifecycle.stopSignal SIGUSR1 has no effect: old 1 does not know it, and ends containers with the signal of"
    assert told == ([] if heeds else [f"{text} their image, or SIGTERM"])
    assert shown == ({"SIGUSR1"} if heeds else {""})


async def test_last_words_are_found_by_the_next_kepd_too(tmp_path: Path) -> None:
    """TMS-01: where they lie is known to the runtime."""
    cri, manifests = Noting(), FakeManifestDirectory({"/m/f.yaml": manifest("web", "i")})
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")
    (mount,) = [one for one in cri.containers[0].mounts if one.container_path == "/dev/termination-log"]
    say(mount.host_path, "farewell\n")
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until_phases(web="Running")
        cri.exit(plane.pod().containers[0].id, 3)
        plane.runner.rounds.due.set()
        await plane.until(lambda: plane.pod().containers[0].last, "it ended")
        last = plane.pod().containers[0].last

        assert last is not None
        assert (last.exit_code, last.message) == (3, "farewell\n")
