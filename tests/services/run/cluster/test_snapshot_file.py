# SPDX-License-Identifier: Apache-2.0
"""SVN-25: a boot begins with the Services that were known, and what the server lists takes their place."""

import os
from pathlib import Path

import pytest

from agent.model.services.service import ServiceKey
from agent.services.objects.node_state import NodeSettings
from agent.services.run.cluster.snapshot_file import EVERY_S, FIRST_S, SnapshotFile
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
    def __init__(self, file: Path, kernel: FakeKernel | None = None, *, is_on: bool = True) -> None:
        self.clock = FakeClock()
        self.silent_s = 0.0
        self.kernel = kernel or FakeKernel()
        waits_for = {"services", "slices", "node"}
        settings = NodeSettings(node="n", addresses=("192.168.0.10",))
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0, waits_for=waits_for)
        rules = NftRuleset(FakeNft("IPv4", self.kernel))
        self.plane = ServicesPlane(self.intake, {"IPv4": rules}, clock=self.clock, tell=lambda _: None)
        self.file = SnapshotFile(self.plane, file, self.clock, ("1", "n"), silent_s=lambda: self.silent_s, is_on=is_on)

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


def is_there(file: Path) -> bool:
    return file.exists()


async def test_what_a_source_said_first_counts(file: Path) -> None:
    after = Process(file)
    after.list("web")
    await after.file.begin()

    assert GONE not in after.intake.fold.services
