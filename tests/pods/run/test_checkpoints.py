# SPDX-License-Identifier: Apache-2.0
"""Archives of checkpoints on disk: made, described without trust, kept and removed. The runtime's part is a fake's."""

import asyncio
import io
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.sections.checkpoints import PodCheckpoints
from agent.model.nodes.use import Amount, ContainerUse, NodeLook, PodUse
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed
from agent.pods.plan.evict import EvictionRules, Threshold
from agent.pods.plan.scarcity.checkpoints import archive_name
from agent.pods.run.checkpoints import archive as archive_module
from agent.pods.run.checkpoints.archive import NotAnArchive, described
from agent.pods.run.checkpoints.folder import CheckpointFolder
from agent.pods.run.metrics import PodMetrics
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import FakeNode, Slow, manifest, running
from tests.pods.run.test_commands import commands_of

CONFIG = {"id": "1", "rootfsImageName": "registry.example/web:1", "rootfsImage": "sha256:0"}
LOG = b"(00.000000) Version: 3.17.1 (gitid 0)\nmore\n"
NOW = 1_800_000_000.0


def tar(*members: tuple[str, bytes], **changes: Any) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=changes.pop("format", tarfile.USTAR_FORMAT)) as file:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in changes.items():
                setattr(info, field, value)
            file.addfile(info, io.BytesIO(data))
    return content.getvalue()


def whole(**config: object) -> bytes:
    return tar(
        ("checkpoint/pages-1.img", os.urandom(5000)), ("config.dump", json.dumps({**CONFIG, **config}).encode()),
        ("dump.log", LOG), ("spec.dump", b"{}"),
    )  # fmt: skip


def read(content: bytes) -> tuple[str, str]:
    found = described(io.BytesIO(content), len(content))
    return found.image, found.criu


def test_an_archive_says_its_image_and_criu() -> None:
    """CKP-13."""
    assert read(whole()) == ("registry.example/web:1", "3.17.1")
    assert read(tar(("./config.dump", b'{"rootfsImage": "sha256:1"}'))) == ("sha256:1", "")
    assert read(tar(("config.dump", json.dumps(CONFIG).encode()), format=tarfile.PAX_FORMAT, pax_headers={"a": "b"}))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"rubbish", b"x" * 5000, tar(), tar(("spec.dump", b"{}")), whole()[:6000], whole()[:700],
        tar(("/config.dump", b"{}")), tar(("../config.dump", b"{}")), tar(("a/../config.dump", b"{}")),
        tar(("config.dump", b"{")), tar(("config.dump", b"[" * 100_000)), tar(("config.dump", b'{"rootfsImage": 1}')),
        tar(("config.dump", b" " * ((1 << 20) + 1))), tar(("config.dump", b""), type=tarfile.SYMTYPE),
        tar(("config.dump", b"\xff")),
    ],
)  # fmt: skip
def test_what_is_no_archive_is_said_and_does_no_harm(content: bytes) -> None:
    """CKP-15."""
    with pytest.raises(NotAnArchive):
        read(content)


def header(size: int, kind: bytes, name: bytes = b"x") -> bytes:
    block = bytearray(512)
    block[: len(name)] = name
    block[124:136] = b"\x80" + size.to_bytes(11, "big")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"0"])
def test_attributes_and_members_of_any_size_are_not_read(kind: bytes) -> None:
    """CKP-15: a file with holes says that it is large; Python's reader would take its attributes into memory."""

    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            found = super().read(size)
            Counting.taken += len(found)
            return found

    content = Counting(header(1 << 40, kind))
    with pytest.raises(NotAnArchive):
        described(content, (1 << 41))

    assert Counting.taken <= 1024


def test_members_without_end_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """CKP-15."""
    monkeypatch.setattr(archive_module, "MOST_MEMBERS", 10)

    with pytest.raises(NotAnArchive, match="more than 10 members"):
        read(header(0, b"0") * 50)


@given(st.binary(max_size=3000), st.integers(0, 6000))
def test_a_damaged_archive_raises_nothing_else(damage: bytes, place: int) -> None:
    """CKP-15."""
    content = whole()
    content = content[:place] + damage + content[place + len(damage) :]
    try:
        image, criu = read(content)
    except NotAnArchive:
        return
    assert len(image) <= 256
    assert len(criu) <= 32


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    made = CheckpointFolder(tmp_path / "checkpoints")
    made.make()
    return made


def put(folder: CheckpointFolder, age_s: float, content: bytes = b"", pod: str = "web") -> str:
    name = archive_name(pod, "default", "app", NOW - age_s)
    (folder.directory / name).write_bytes(content or whole())
    return name


def test_archives_are_listed_newest_first(folder: CheckpointFolder) -> None:
    """CKP-12, CKP-13."""
    old, new, bad = put(folder, 20), put(folder, 10), put(folder, 30, b"rubbish")
    (folder.directory / "notes.txt").write_bytes(b"x")
    (folder.directory / archive_name("link", "default", "app", NOW)).symlink_to("/etc/passwd")
    folder.writing.add(new)
    found = folder.listed()

    assert [(one.name, one.state, one.image, one.criu) for one in found] == [
        (new, "writing", "", ""), (old, "ready", "registry.example/web:1", "3.17.1"), (bad, "broken", "", ""),
    ]  # fmt: skip
    assert folder.counted[0] == {"ready": 1, "writing": 1, "broken": 1}
    assert folder.counted[1] == sum(one.size_bytes for one in found) > 0
    assert stat.S_IMODE(folder.directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["notes.txt", "../outside", "", "/etc/passwd", ".", ".."])
def test_only_archives_are_removed(folder: CheckpointFolder, name: str) -> None:
    """CKP-12."""
    (folder.directory / "notes.txt").write_bytes(b"x")
    (folder.directory.parent / "outside").write_bytes(b"x")

    assert not folder.remove(name)
    assert (folder.directory / "notes.txt").exists()
    assert (folder.directory.parent / "outside").exists()


def test_one_that_is_being_written_stays(folder: CheckpointFolder) -> None:
    name = put(folder, 1000)
    folder.writing.add(name)

    assert not folder.remove(name)
    assert folder.tidy(PodCheckpoints(max_age=10), NOW) == []
    assert folder.make_room(1 << 40) == []


def test_tidying_and_making_room_remove_the_oldest(folder: CheckpointFolder) -> None:
    """CKP-13."""
    named = [put(folder, age) for age in (1, 2, 3, 4)]

    assert folder.tidy(PodCheckpoints(keep=3), NOW) == [named[3]]
    assert folder.make_room(1) == [named[2]]
    assert folder.make_room(1 << 40) == [named[1], named[0]]
    assert list(folder.directory.iterdir()) == []


def test_nothing_is_listed_before_the_first(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "none").listed() == []


class Writes(Slow):
    """A runtime that makes checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.begun = asyncio.Event()
        self.fails: Exception | None = None

    async def checkpoint_container(self, container_id: str, location: str) -> None:
        await asyncio.to_thread(Path(location).write_bytes, whole())
        self.begun.set()
        await self.go.wait()
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def web() -> FakeManifestDirectory:
    return FakeManifestDirectory({"/m/f.yaml": manifest()})


async def test_a_checkpoint_is_made_listed_and_deleted(web: FakeManifestDirectory, tmp_path: Path) -> None:
    """CKP-11 to CKP-13."""
    async with running(Writes(), web, tmp_path) as plane:
        await plane.until_phases(web="Running")
        commands = commands_of(plane)
        made = await commands.checkpoint("", "web-n", "a")
        (listed,) = await commands.checkpoints.listed()
        metrics = {one.name: one for one in plane.metrics.families()}
        await commands.checkpoints.delete(listed.name)
        with pytest.raises(Refused, match="no checkpoint") as refused:
            await commands.checkpoints.delete(listed.name)

    assert Path(made.path).name == listed.name
    assert re.fullmatch(r"checkpoint-web-n_default-a-.*Z\.tar", listed.name)
    assert (listed.state, listed.criu) == ("ready", "3.17.1")
    assert made.took_s >= 0
    assert {one.labels["state"]: one.value for one in metrics["kepd_checkpoints"].samples} == {
        "ready": 1, "writing": 0, "broken": 0,
    }  # fmt: skip
    assert metrics["kepd_checkpoint_bytes"].samples[0].value > 0
    assert [one.value for one in metrics["kepd_checkpoint_seconds"].samples if one.name.endswith("count")] == [1]
    assert refused.value.kind == "no_archive"


async def test_only_one_is_made_at_a_time(web: FakeManifestDirectory, tmp_path: Path) -> None:
    """CKP-11."""
    cri = Writes()
    async with running(cri, web, tmp_path) as plane:
        await plane.until_phases(web="Running")
        commands = commands_of(plane)
        cri.go.clear()
        first = asyncio.ensure_future(commands.checkpoint("", "web-n", "a"))
        await cri.begun.wait()
        with pytest.raises(Refused, match="one at a time") as refused:
            await commands.checkpoint("", "web-n", "a")
        (listed,) = await commands.checkpoints.listed()
        cri.go.set()
        await first

    assert refused.value.kind == "no_checkpoint"
    assert listed.state == "writing"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CRIU binary not found or too old (<31600). Failed to checkpoint container", "no_checkpoint"),
        ("the disk is full", "unavailable"),
    ],
)
async def test_what_failed_leaves_no_part_and_says_what_helps(
    web: FakeManifestDirectory, tmp_path: Path, text: str, kind: str
) -> None:
    """CKP-10, CKP-11."""
    cri = Writes()
    cri.fails = RuntimeCallFailed("CheckpointContainer", text)
    async with running(cri, web, tmp_path) as plane:
        await plane.until_phases(web="Running")
        commands = commands_of(plane)
        with pytest.raises(Refused) as refused:
            await commands.checkpoint("", "web-n", "a")
        listed = await commands.checkpoints.listed()

    assert (refused.value.kind, "install criu" in str(refused.value)) == (kind, kind == "no_checkpoint")
    assert listed == []


async def test_without_room_the_runtime_is_not_asked(web: FakeManifestDirectory, tmp_path: Path) -> None:
    """CKP-10: one and a half times what it has in memory, and its layer."""
    cri = Writes()
    async with running(cri, web, tmp_path) as plane:
        await plane.until_phases(web="Running")
        node: Any = plane.runner.node
        node.uses = {plane.pod().uid: PodUse(containers=(ContainerUse(name="a", memory=100, layer_bytes=50),))}
        node.amounts = {"nodefs.available": Amount(199, 1000)}
        with pytest.raises(Refused, match="it may take 200") as refused:
            await commands_of(plane).checkpoint("", "web-n", "a")
        node.amounts = {"nodefs.available": Amount(200, 1000)}
        await commands_of(plane).checkpoint("", "web-n", "a")

    assert refused.value.kind == "no_room"


async def test_a_container_that_does_not_run_has_none(web: FakeManifestDirectory, tmp_path: Path) -> None:
    """CKP-10."""
    async with running(Writes(), web, tmp_path) as plane:
        await plane.until_phases(web="Running")
        with pytest.raises(Refused) as refused:
            await commands_of(plane).checkpoint("", "web-n", "none")

    assert refused.value.kind == "not_found"


class FillingDisk(FakeNode):
    """Has as much left as archives do not take."""

    def __init__(self, folder: CheckpointFolder, signal: str, left: int) -> None:
        super().__init__()
        self._folder = folder
        self._signal, self._left = signal, left
        self._all = sum(one.size_bytes for one in folder.archives())

    async def look(self) -> NodeLook:
        freed = self._all - sum(one.size_bytes for one in self._folder.archives())
        self.amounts = {self._signal: Amount(self._left + freed, 1 << 30)}
        return await super().look()


@pytest.mark.parametrize(("signal", "left"), [("nodefs.available", 1), ("memory.available", 3)])
async def test_under_pressure_of_the_disk_archives_go_before_pods(
    web: FakeManifestDirectory, tmp_path: Path, signal: str, left: int
) -> None:
    """CKP-13: as many as it takes, after images that nothing needs."""
    logs = tmp_path / "logs"
    folder = CheckpointFolder(tmp_path / "logs-pods/checkpoints")
    folder.make()
    named = [put(folder, age) for age in (1, 2, 3)]
    line = 1 << 20
    node = FillingDisk(folder, signal, line - 2 * folder.archives()[0].size_bytes)
    rules = EvictionRules(thresholds=(Threshold(signal=signal, quantity=line),), period_s=0.05)
    checkpoints = PodCheckpoints(max_age=1e12)
    async with running(Writes(), web, logs, node=node, eviction=rules, checkpoints=checkpoints) as plane:
        await plane.until(lambda: len(folder.archives()) == left and node.looks > 3, "room to be made")
        await plane.until_phases(web="Running" if left == 1 else "Failed")

    assert node.rooms == (["nodefs.available"] if left == 1 else [])
    assert [one.name for one in folder.archives()] == named[:1] if left == 1 else len(folder.archives()) == left


def test_metrics_are_there_before_the_first() -> None:
    found: Callable[[], Any] = PodMetrics().families
    samples = {one.name: one.samples for one in found()}

    assert [one.value for one in samples["kepd_checkpoints"]] == [0, 0, 0]
