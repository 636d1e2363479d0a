# SPDX-License-Identifier: Apache-2.0
"""CKP-14: containers that begin from a checkpoint, once. What a runtime makes of it is in vm/test_features.py."""

from pathlib import Path

import pytest

from agent.pods.plan.scarcity.checkpoints import archive_name
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import KnownRuntime, News, Slow, manifest, running
from tests.pods.run.test_checkpoints import whole

NAME = archive_name("old", "default", "a", 1_800_000_000.0)
CAN = KnownRuntime(name="containerd", version="2.1.9")


class Restores(Slow):
    """Takes an archive in the place of an image, as containerd 2.1 does; what containers were made of."""

    def __init__(self) -> None:
        super().__init__()
        self.made_of: list[str] = []

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> str:
        self.made_of.append(config.image.image)
        if config.image.image.endswith(".tar"):
            config.image.image = config.image.user_specified_image
        return await super().create_container(sandbox_id, config, sandbox_config)


def place(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "logs-pods" / "checkpoints" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


async def pulled(cri: Restores) -> str:
    """As an archive names an image that was pulled."""
    await cri.pull_image("i", None)
    found = await cri.image_status("i")
    assert found is not None
    return f"registry.example/i@{found.id}"


def asking(name: str = NAME) -> FakeManifestDirectory:
    text = manifest("new", "i", more=f", annotations: {{kepd.dev/restore.a: '{name}'}}")
    return FakeManifestDirectory({"/m/a.yaml": text})


async def test_a_container_begins_from_its_checkpoint_once(tmp_path: Path) -> None:
    """Also when kepd begins anew between its two lives."""
    cri = Restores()
    path = place(tmp_path, whole(rootfsImageRef=await pulled(cri)))
    manifests = asking()
    async with running(cri, manifests, tmp_path / "logs", runtime=CAN) as plane:
        await plane.until_phases(new="Running")
        first, reasons = tuple(cri.made_of), [one.reason for one in plane.events]
    async with running(cri, manifests, tmp_path / "logs", runtime=CAN, events=News(cri)) as plane:
        await plane.until_phases(new="Running")
        cri.exit(plane.pod("new-n").containers[0].id, 1)
        await plane.until(lambda: len(cri.made_of) > len(first), "it is started again")

    assert first == (str(path),)
    assert reasons.count("Restored") == 1
    assert not cri.made_of[-1].endswith(".tar")


@pytest.mark.parametrize(
    ("runtime", "content", "name", "text"),
    [
        (KnownRuntime(name="containerd", version="2.0.4"), whole(), NAME, "containerd 2.0.4 cannot begin from a"),
        (KnownRuntime(name="containerd", version="2.4.0"), whole(), NAME, "containerd 2.4.0 cannot begin from a"),
        (KnownRuntime(name="cri-o", version="1.33.0"), whole(), NAME, "cri-o 1.33.0 cannot begin from a"),
        (CAN, whole(rootfsImageRef="a/i@sha256:1"), NAME, "is of image a/i@sha256:1; i is another"),
        (CAN, None, NAME, "has its image by id alone"),
        (CAN, b"rubbish", NAME, "is not there, or broken; kepctl get checkpoints lists"),
        (CAN, whole(), archive_name("other", "default", "a", 0), "is not there, or broken"),
    ],
)
async def test_what_cannot_be_restored_waits_and_says_why(
    tmp_path: Path, runtime: KnownRuntime, content: bytes | None, name: str, text: str
) -> None:
    cri = Restores()
    place(tmp_path, content or whole(rootfsImageRef=(await pulled(cri)).rpartition("@")[2]))
    async with running(cri, asking(name), tmp_path / "logs", runtime=runtime) as plane:
        await plane.until(lambda: text in str(plane.runner.pods.items), text)

    assert cri.made_of == []


async def test_a_name_that_leads_elsewhere_costs_the_annotation_alone(tmp_path: Path) -> None:
    cri = Restores()
    async with running(cri, asking("../../etc/shadow.tar"), tmp_path / "logs", runtime=CAN) as plane:
        await plane.until_phases(new="Running")

    assert not cri.made_of[0].endswith(".tar")
    assert any("is no name of a checkpoint" in one.message for one in plane.events)
