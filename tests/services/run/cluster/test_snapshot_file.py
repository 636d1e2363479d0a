# SPDX-License-Identifier: Apache-2.0
"""SVN-25: a boot begins with the Services that were known, and what the server lists takes their place."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from agent.model.event import Event
from agent.model.services.service import PortKey, ServiceKey
from agent.services.objects.node_state import NodeSettings, NodeSight
from agent.services.objects.snapshot import Expected
from agent.services.run.cluster.snapshot_file import (
    CHANGES_FILE,
    CHANGES_S,
    EVERY_S,
    FIRST_CHANGES_S,
    FIRST_S,
    RETRY_S,
    SnapshotFile,
)
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.nft_view import NftRulesView
from agent.services.run.plane import ServicesPlane
from agent.services.run.view import ServicesView
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice

WEB, GONE = ServiceKey("shop", "web"), ServiceKey("shop", "gone")


class Process:
    def __init__(
        self, file: Path, kernel: FakeKernel | None = None, *, is_on: bool = True, keeps_changes: bool = False,
        cluster: str = "c",
    ) -> None:  # fmt: skip
        self.clock = FakeClock()
        self.silent_s = 0.0
        self.kernel = kernel or FakeKernel()
        waits_for = {"services", "slices", "node"}
        settings = NodeSettings(node="n", addresses=("192.168.0.10",))
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0, waits_for=waits_for)
        rules = NftRuleset(FakeNft("IPv4", self.kernel))
        self.plane = ServicesPlane(self.intake, {"IPv4": rules}, clock=self.clock, tell=lambda _: None)
        self.told: list[Event] = []
        self.taken: list[float] = []
        self.file = SnapshotFile(
            self.plane, file, self.clock, lambda: Expected(read_by=("1", "n"), cluster=cluster),
            silent_s=lambda: self.silent_s, is_on=is_on, keeps_changes=keeps_changes, restored=self.taken.append,
            tell=self.told.append,
        )  # fmt: skip

        async def addresses() -> tuple[bytes, ...]:
            return ()

        self.view = ServicesView(self.plane, {"IPv4": NftRulesView("IPv4", rules)}, addresses, beside=[self.file])

    def list(self, *names: str) -> None:
        """As a source does."""
        numbered = list(enumerate(names, 1))
        self.intake.replace_services(make_service(name, ip=f"10.96.0.{at}") for at, name in numbered)
        self.intake.replace_slices(make_slice([f"10.1.0.{at}"], service=name) for at, name in numbered)
        self.intake.complete("node")

    async def sync(self) -> None:
        await self.plane.families["IPv4"].sync()

    @property
    def programmed(self) -> set[str]:
        return {plan.key.name for plan in self.plane.families["IPv4"].desired.plans()}


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """As a kepd left it that knew two Services."""
    found = tmp_path / "state" / "snapshot.bin"
    first = Process(found)
    first.list("web", "gone")
    await first.file.write()
    return found


async def test_a_boot_begins_with_what_was_known(file: Path) -> None:
    after = Process(file)
    await after.file.begin()
    assert after.intake.arrived.is_set()
    await after.sync()

    assert after.programmed == {"web", "gone"}
    assert any("from the snapshot" in line for line in after.view.route(WEB))
    after.list("web", "fresh")
    await after.sync()
    assert after.programmed == {"web", "fresh"}
    assert not any("from the snapshot" in line for line in after.view.route(WEB))


async def test_rules_that_stand_are_newer(file: Path) -> None:
    first = Process(file)
    first.list("web")
    await first.sync()
    after = Process(file, first.kernel)
    await after.file.begin()

    assert not after.intake.arrived.is_set()


async def test_it_is_as_old_as_the_servers_last_word(file: Path) -> None:
    """A server that is away makes no snapshot younger, and neither does a process that has nothing but one."""
    known = Process(file)
    known.list("web")
    known.silent_s = 3000.0
    await known.file.write()
    before = file_time(file)
    assert before == known.clock.wall_s() - 3000.0
    late = Process(file)
    await late.clock.advance(700.0)
    await late.file.begin()
    assert not late.intake.arrived.is_set()

    other = Process(file)
    await other.file.begin()
    await other.file.end()
    assert file_time(file) == before


def file_time(file: Path) -> float:
    return file.stat().st_mtime


@pytest.mark.parametrize("age_s", [3601.0, -10.0])
async def test_an_old_one_is_left_alone(file: Path, age_s: float) -> None:
    after = Process(file)
    when_s = after.clock.wall_s() - age_s
    os.utime(file, (when_s, when_s))
    await after.file.begin()

    assert not after.intake.arrived.is_set()


async def test_it_is_written_only_when_something_changed(file: Path) -> None:
    known = Process(file)
    known.list("web")
    await known.file.write()
    first = file_number(file)
    await known.file.write()
    assert file_number(file) == first
    known.list("web", "more")
    await known.file.write()
    assert file_number(file) != first
    assert (FIRST_S, EVERY_S) == (60.0, 600.0)


def file_number(file: Path) -> int:
    return file.stat().st_ino


async def test_switched_off_it_leaves_no_file(file: Path) -> None:
    off = Process(file, is_on=False)
    await off.file.begin()
    off.list("web")
    await off.file.write()

    assert not is_there(file)


async def test_what_cannot_be_removed_stops_nothing(file: Path) -> None:
    """As on a disk that is read-only by now."""
    spoil(file, "folder")
    await Process(file, is_on=False).file.begin()

    assert is_there(file)


def is_there(file: Path) -> bool:
    return file.exists()


async def test_what_a_source_said_first_counts(file: Path) -> None:
    after = Process(file)
    after.list("web")
    await after.file.begin()

    assert GONE not in after.intake.fold.services


async def test_changes_are_kept_as_they_come(file: Path) -> None:
    """SVN-127: a crash a moment later begins with them."""
    known = Process(file, keeps_changes=True)
    known.list("web", "gone")
    running = asyncio.create_task(known.file.run())
    await known.clock.advance(FIRST_CHANGES_S)
    await until(lambda: (file.parent / CHANGES_FILE).exists())
    whole = file_number(file)
    known.intake.drop_service("shop", "gone")
    known.intake.drop_slice("shop", "gone-1")
    known.intake.put_slice(make_slice(["10.1.0.9"]))
    before = (file.parent / CHANGES_FILE).stat().st_size
    while (file.parent / CHANGES_FILE).stat().st_size == before:
        await known.clock.advance(CHANGES_S)
        await asyncio.sleep(0.001)
    running.cancel()
    assert file_number(file) == whole

    after = Process(file, keeps_changes=True)
    await after.clock.advance(EVERY_S)
    await after.file.begin()
    assert set(after.intake.fold.services) == {WEB}
    assert [one.key for one in after.intake.fold.backends(WEB, "IPv4", PortKey("http", "TCP"))] == ["10.1.0.9:8080"]
    assert after.taken == [file_time(file)]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "damaged"),
        (lambda file: os.truncate(file, 1 << 30), "too large"),
        (lambda file: file.write_bytes(b""), "damaged"),
    ],
)
async def test_a_hostile_one_is_refused_with_the_reason(file: Path, spoil: Any, reason: str) -> None:
    """SVN-128."""
    when_s = file_time(file)
    spoil(file)
    os.utime(file, (when_s, when_s))
    after = Process(file)
    await after.file.begin()

    assert not after.intake.arrived.is_set()
    (event,) = after.told
    assert event.reason == "SnapshotRefused"
    assert reason in event.message


async def test_one_of_another_cluster_is_refused(file: Path) -> None:
    """SVN-128."""
    after = Process(file, cluster="another")
    await after.file.begin()

    assert not after.intake.arrived.is_set()
    assert "another cluster" in after.told[0].message


async def test_where_rules_stand_it_is_taken_when_the_server_stays_silent(file: Path) -> None:
    """SVN-125: a kepd that was restarted during an outage."""
    first = Process(file)
    first.list("web")
    await first.sync()
    after = Process(file, first.kernel)
    await after.file.begin()
    assert not after.intake.arrived.is_set()
    await after.file.restore()

    assert after.intake.arrived.is_set()


async def test_what_a_list_said_before_the_silence_is_not_taken_back(file: Path) -> None:
    """SVN-127: Services were listed, slices were not, and then the server was gone."""
    after = Process(file, keeps_changes=True)
    after.intake.replace_services([make_service("web", ip="10.96.0.77")])
    await after.file.restore()
    part = after.intake.fold.services[WEB].v4

    assert set(after.intake.fold.services) == {WEB}
    assert part is not None
    assert part.cluster_ip.text == "10.96.0.77"
    assert after.intake.fold.slice_keys == [("shop", "web-1"), ("shop", "gone-1")]
    assert after.intake.unconfirmed == {"slices"}


async def test_rules_that_stand_are_remembered_for_the_first_list(file: Path) -> None:
    """SVN-129: nothing is programmed of it, and nothing is said of one that does not fit."""
    first = Process(file)
    first.list("web")
    await first.sync()
    after, other = (Process(file, first.kernel, keeps_changes=True, cluster=name) for name in ("c", "another"))
    await after.file.begin()
    await other.file.begin()

    assert after.intake.remembered["Service"] == {WEB, GONE}
    assert after.intake.remembered["EndpointSlice"] == {("shop", "web-1"), ("shop", "gone-1")}
    assert (after.intake.arrived.is_set(), other.intake.remembered, other.told) == (False, {}, [])


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_full_disk_is_told_once_costs_little_and_loses_no_change(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SVN-127."""
    known, tries = Process(file, keeps_changes=True), list[object]()
    known.list("web", "gone")
    running = asyncio.create_task(known.file.run())
    await known.clock.advance(FIRST_CHANGES_S)
    await until(lambda: (file.parent / CHANGES_FILE).exists())

    def refuse_all(*_: object) -> None:
        tries.append(None)
        refuse()

    with monkeypatch.context() as full:
        full.setattr("agent.services.run.cluster.snapshot_file._append", refuse_all)
        full.setattr("agent.services.run.cluster.snapshot_file.write_file", refuse_all)
        known.intake.drop_service("shop", "gone")
        known.intake.drop_slice("shop", "gone-1")
        for _ in range(60):
            await known.clock.advance(CHANGES_S)
            await asyncio.sleep(0.002)
        (event,) = known.told
        assert (event.reason, "No space left" in event.message) == ("SnapshotNotWritten", True)
        assert "No space left" in known.file.problem
        assert len(tries) <= 5
    while known.file.problem:
        await known.clock.advance(RETRY_S)
        await asyncio.sleep(0.002)
    running.cancel()
    after = Process(file, keeps_changes=True)
    await after.clock.advance(known.clock.now_s())
    await after.file.begin()

    assert set(after.intake.fold.services) == {WEB}


async def test_it_is_written_again_when_the_node_is_another(file: Path) -> None:
    known = Process(file)
    known.list("web")
    await known.file.write()
    first = file_number(file)
    known.intake.sight = NodeSight(is_known=True, labels={"topology.kubernetes.io/zone": "b"})
    await known.file.write()

    assert file_number(file) != first


def spoil(file: Path, kind: str) -> None:
    aside = file.rename(file.parent / "aside")
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "link":
            file.symlink_to(aside)
        case "writable":
            aside.rename(file).chmod(0o622)
        case _:
            file.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "link", "writable", "folder"])
async def test_one_that_others_may_have_put_there_is_refused(file: Path, kind: str) -> None:
    """SVN-128: and holds up nothing."""
    spoil(file, kind)
    after = Process(file)
    await asyncio.wait_for(after.file.begin(), 10.0)

    assert not after.intake.arrived.is_set()
    assert [one.reason for one in after.told] == ["SnapshotRefused"]


async def test_one_from_the_future_asks_for_the_clock(file: Path) -> None:
    """SVN-128."""
    after = Process(file)
    os.utime(file, (after.clock.wall_s() + 30.0,) * 2)
    await after.file.begin()

    assert "from the future, by 30 s: is the clock of this node right?" in after.told[0].message


async def until(condition: Any) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.001)
