# SPDX-License-Identifier: Apache-2.0
"""Drivers as processes with a script: they register, lie, hang, die, come twice and pose as others. DVM-1 to DVM-4.

The same suite as for the fake of test_claims.py, over real sockets.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.model.component import Board, State
from agent.model.devices.plugin import PluginInfo, PluginPeer
from agent.model.devices.problem import DevicesNotReleased
from agent.model.event import Event
from kepd_devices.drivers.plugin_sockets.driver import PluginSockets
from kepd_devices.drivers.plugin_sockets.kubelet import kubelet_beside
from kepd_devices.drivers.plugin_sockets.peer import group_of
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.reading import read_device_objects
from kepd_devices.plan.registration import Instance, PluginRefused, groups_note, judge
from kepd_devices.run.drivers.registered_driver import KEPT_S
from kepd_devices.run.drivers.registry import PluginRegistry
from kepd_devices.run.view import DeviceView
from packages.devices.tests.fakes import LateClock
from packages.devices.tests.test_claims import SHARED, NodeOfLives, held, shared_pod
from packages.devices.tests.test_pod_claims import pod
from packages.devices.tests.written import CLAIM, CLASS, SLICE

ROOT = Path(__file__).resolve().parents[3]
DRIVER = "gpu.example.com"
ONE = CLAIM.replace("count: 2", "count: 1")
CALL_S = 1.0
ROOT_USER = PluginPeer(0)
WITHIN_S = 30.0


class Drivers:
    """A registry over a directory, and processes that register in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / "r"
        self.directory.mkdir()
        self.node = NodeOfLives(0, call_limit_s=CALL_S)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.told: list[Event] = []
        self.board = Board(lambda: 0.0)
        self.clock = LateClock()

    async def begin(self) -> None:
        self.claims = await self.node.manager()
        self.claims._drivers.clear()
        files = {"/m": f"{ONE}---\n{CLASS}---\n{SLICE}".encode()}
        self.claims.take(read_device_objects(files, Reader("here")))
        sockets = PluginSockets(self.directory, os.geteuid())
        self.registry = PluginRegistry(
            sockets, self.claims, self.clock, lambda: CALL_S, self.told.append, own=("fake.kepd.dev",)
        )
        report = self.board.add("device-drivers", State.STARTING)
        self.task = asyncio.create_task(self.registry.run(report))

    def start(self, file: str = f"{DRIVER}-reg.sock", **given: Any) -> subprocess.Popen[bytes]:
        whole = {"name": DRIVER, "socket": str(self.directory / file), **given}
        command = [sys.executable, "-m", "packages.devices.tests.scripted_driver", str(self.folder), json.dumps(whole)]
        process = subprocess.Popen(command, cwd=ROOT)
        self.processes.append(process)
        return process

    def calls(self, name: str = DRIVER) -> list[str]:
        path = self.folder / f"{name}.calls"
        return [one for one in path.read_text().splitlines() if one != "serves"] if path.exists() else []

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        for _ in range(int(WITHIN_S / 0.02)):
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {WITHIN_S} s: {what}; {self.calls()} {self.told} {self.registry.findings}")

    async def registered(self, name: str = DRIVER, count: int = 1) -> None:
        await self.until(
            lambda: name in self.registry.drivers and len(self.registry.drivers[name].instances) == count
            and "told True" in self.calls(name), "registered",
        )  # fmt: skip

    @property
    def reasons(self) -> list[str]:
        return [one.reason for one in self.told]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
async def drivers(short_path: Path) -> AsyncIterator[Drivers]:
    made = Drivers(short_path)
    await made.begin()
    yield made
    await made.end()


async def test_a_driver_registers_prepares_and_unprepares(drivers: Drivers) -> None:
    """DVM-1, DVM-10, DVM-15."""
    drivers.start()
    await drivers.registered()
    assert await held(drivers.claims, shared_pod("one")) == ""
    (record,) = drivers.claims.records.values()
    await drivers.claims.release("uid-one")

    assert [one.cdi_ids for one in record.drivers[DRIVER].devices] == [("example.com/gpu=0",)]
    assert drivers.calls() == ["told True", "prepare gpus", "unprepare gpus"]
    assert drivers.reasons == ["DriverRegistered"]


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1.DRAPlugin"),
        (["v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"], "v1beta1.DRAPlugin"),
    ],
)
async def test_the_newest_version_is_spoken_whatever_the_order(
    drivers: Drivers, versions: list[str], chosen: str
) -> None:
    """DVM-2."""
    drivers.start(versions=versions)
    await drivers.registered()

    assert drivers.registry.drivers[DRIVER].instances[0][0].version == chosen
    assert await held(drivers.claims, shared_pod("one")) == ""


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"type": "CSIPlugin"}, "'CSIPlugin' plugins are not served here; expected DRAPlugin"),
        ({"versions": ["v1alpha4"]}, "offers 'v1alpha4'; expected one of v1.DRAPlugin, v1beta1.DRAPlugin"),
        ({"versions": []}, "offers nothing; expected one of"),
        ({"name": "gpu_driver"}, "'gpu_driver' is no name of a driver"),
        ({"name": "fake.kepd.dev"}, "fake.kepd.dev is one of kepd's own drivers"),
    ],
)
async def test_who_cannot_be_registered_is_told_once_why(drivers: Drivers, given: Any, complaint: str) -> None:
    """DVM-1, DVM-2, DVF-2, DVX-7."""
    name = given.get("name", DRIVER)
    drivers.start(**given)
    await drivers.until(lambda: any(one.startswith("told False") for one in drivers.calls(name)), "told")
    await drivers.registry.look()
    await drivers.registry.look()

    (told,) = drivers.calls(name)
    assert complaint in told
    assert drivers.registry.drivers == {}
    assert drivers.reasons == ["DriverRefused"]
    await drivers.until(lambda: complaint in drivers.board.line("device-drivers").message, "told on the board")
    assert drivers.board.line("device-drivers").state is State.READY


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        ("error", "driver gpu.example.com: no power"),
        ("skip", "driver gpu.example.com skipped claim default/gpus"),
        ("strange", "answers about claim 'another', which was not asked about"),
        ("wrong-device", "answers with device 'here/gpu-9', which claim default/gpus does not have"),
        ("bad-id", "answers with an id that cannot be used: 'gpu' is no CDI id"),
        ("flood", "answers with 10000 devices; expected at most 1024"),
        ("internal", "driver gpu.example.com: broken?[31m"),
        ("unavailable", "driver gpu.example.com: not now"),
        ("hang", "driver gpu.example.com: did not answer in time"),
    ],
)
async def test_a_driver_that_lies_or_fails_is_told_and_asked_again(drivers: Drivers, act: str, complaint: str) -> None:
    """DVM-12, DVM-16, DVF-6."""
    drivers.start(prepare=[act])
    await drivers.registered()
    why = await held(drivers.claims, shared_pod("one"))

    assert complaint in why
    assert "\n" not in why
    assert await held(drivers.claims, shared_pod("one")) == ""
    await drivers.claims.release("uid-one")
    assert drivers.claims.records == {}


async def test_a_driver_that_dies_in_a_call_is_asked_again_when_it_is_back(drivers: Drivers) -> None:
    """DVM-4, DVM-18."""
    first = drivers.start(prepare=["die"])
    await drivers.registered()
    news: list[bool] = []
    drivers.claims.changed = lambda: news.append(True)
    assert "FailedPrepareDynamicResources" in await held(drivers.claims, shared_pod("one"))
    first.wait()
    (drivers.directory / f"{DRIVER}-reg.sock").unlink()
    await drivers.until(lambda: "DriverAway" in drivers.reasons, "away")
    assert "driver-away: driver gpu.example.com is not registered any more" in await held(
        drivers.claims, shared_pod("one")
    )

    news.clear()
    (drivers.folder / f"{DRIVER}.calls").unlink()
    (drivers.folder / f"{DRIVER}.sock").unlink(missing_ok=True)
    drivers.start()
    await drivers.registered()
    assert news == [True]
    assert await held(drivers.claims, shared_pod("one")) == ""


@pytest.mark.parametrize("is_removed", [True, False])
async def test_slices_of_a_driver_that_is_away_do_not_count_after_a_while(drivers: Drivers, is_removed: bool) -> None:
    """DVM-4: one that was killed leaves its socket. What its claims have stays."""
    first = drivers.start()
    await drivers.registered()
    assert await held(drivers.claims, shared_pod("one")) == ""
    first.kill()
    first.wait()
    driver = drivers.registry.drivers[DRIVER]
    if is_removed:
        (drivers.directory / f"{DRIVER}-reg.sock").unlink()
        await drivers.until(lambda: not driver.instances, "away")
    await drivers.until(lambda: not any(one.is_connected for _, one in driver.instances), "not connected")
    await drivers.registry.look()
    drivers.clock.ahead_s += KEPT_S / 2
    assert [one.spec.driver for one in drivers.claims.slices()] == [DRIVER]

    drivers.clock.ahead_s += KEPT_S / 2
    news: list[bool] = []
    drivers.claims.changed = lambda: news.append(True)
    told = drivers.reasons.count("DriverAway")
    await drivers.registry.look()
    await drivers.registry.look()
    assert drivers.reasons.count("DriverAway") == told + (not is_removed) == 1
    assert (drivers.claims.slices(), news, len(drivers.claims.records)) == ((), [True], 1)
    with pytest.raises(DevicesNotReleased):
        await drivers.claims.release("uid-one")
    another = read_device_objects({"/m": f"{ONE.replace('gpus', 'more')}---\n{CLASS}".encode()}, Reader("here"))
    drivers.claims.take(replace(another, slices=drivers.claims.objects.slices))
    why = await held(drivers.claims, pod(SHARED.replace("NAME", "two").replace("gpus", "more")))
    assert "ClaimUnallocatable" in why
    assert "driver-away: devices of gpu.example.com do not count until it is back" in why

    for one in (f"{DRIVER}.calls", f"{DRIVER}.sock", f"r/{DRIVER}-reg.sock"):
        (drivers.folder / one).unlink(missing_ok=True)
    drivers.start()
    await drivers.until(lambda: "told True" in drivers.calls(), "back")
    assert [one.spec.driver for one in drivers.claims.slices()] == [DRIVER]
    await drivers.claims.release("uid-one")
    assert drivers.claims.records == {}


async def test_a_driver_of_an_earlier_life_has_a_while_to_come_back(drivers: Drivers) -> None:
    """DVM-4: its slices are there when kepd begins, and it may be gone for good."""
    await drivers.until(lambda: "0 drivers" in drivers.board.line("device-drivers").message, "looked")
    assert [one.spec.driver for one in drivers.claims.slices()] == [DRIVER]
    drivers.clock.ahead_s += KEPT_S

    assert drivers.claims.slices() == ()
    assert "driver-away" in await held(drivers.claims, shared_pod("one"))


@pytest.mark.parametrize(
    "script",
    [
        {"prepare": ["kill"]}, {"prepare": ["kill-done"]}, {}, {"unprepare": ["kill"]}, {"unprepare": ["kill-done"]},
        {"prepare": ["kill-done"], "unprepare": ["kill"]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("wants_it_still", [True, False])
async def test_a_driver_that_is_killed_at_any_step_leaves_nothing(
    drivers: Drivers, script: dict[str, list[str]], wants_it_still: bool
) -> None:
    """DVM-4, DVM-16: when all is over no record is there and no file, and the device was reset. kepd lives on, and the
    pod may want its claim still, or end while the driver is away."""
    files = drivers.folder / "cdi"
    files.mkdir()

    async def start(**given: Any) -> subprocess.Popen[bytes]:
        for one in (f"{DRIVER}.sock", f"r/{DRIVER}-reg.sock"):
            (drivers.folder / one).unlink(missing_ok=True)
        before = drivers.calls().count("told True")
        process = drivers.start(cdi=str(files), **given)
        await drivers.until(lambda: drivers.calls().count("told True") > before, "registered")
        return process

    first = await start(prepare=script.get("prepare", []))
    is_held = await held(drivers.claims, shared_pod("one")) == ""
    assert is_held is ("prepare" not in script)
    first.kill()
    first.wait()
    assert len(drivers.claims.records) == 1
    if wants_it_still:
        second = await start(unprepare=script.get("unprepare", []))
        assert await held(drivers.claims, shared_pod("one")) == ""
        assert len(list(files.iterdir())) == 1
    else:
        with pytest.raises(DevicesNotReleased):
            await drivers.claims.release("uid-one")
        second = await start(unprepare=script.get("unprepare", []))
    if "unprepare" in script:
        with pytest.raises(DevicesNotReleased):
            await drivers.claims.release("uid-one")
        assert (second.wait(), len(drivers.claims.records)) == (-signal.SIGKILL, 1)
        await start()
    await drivers.claims.release("uid-one")

    assert (drivers.claims.records, drivers.node.disk.files, list(files.iterdir())) == ({}, {}, [])
    assert "reset" in drivers.calls()


async def test_two_instances_take_turns_and_the_same_endpoint_is_refused(drivers: Drivers) -> None:
    """DVM-3."""
    drivers.start(f"{DRIVER}-old-reg.sock", instance="old")
    await drivers.until(lambda: "told True" in drivers.calls("old"), "the first")
    drivers.start(f"{DRIVER}-new-reg.sock", instance="new", prepare=["unavailable"])
    await drivers.until(lambda: "told True" in drivers.calls("new"), "the second")
    connections = [one for _, one in drivers.registry.drivers[DRIVER].instances]
    await drivers.until(lambda: all(one.is_connected for one in connections), "connected")

    assert await held(drivers.claims, shared_pod("one")) == ""
    assert (drivers.calls("new")[1:], drivers.calls("old")[1:]) == (["prepare gpus"], ["prepare gpus"])
    drivers.start(
        "thief-reg.sock", instance="thief", name="thief.example.com", endpoint=str(drivers.folder / "old.sock")
    )
    await drivers.until(
        lambda: any("already registered" in one for one in drivers.registry.findings.values()), "refused"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_socket_of_another_user_is_not_trusted(drivers: Drivers) -> None:
    """DVF-1."""
    path = drivers.directory / f"{DRIVER}-reg.sock"
    with socket.socket(socket.AF_UNIX) as one:
        draft = path.with_name(".draft")
        one.bind(str(draft))
        os.chown(draft, 65534, 65534)
        draft.rename(path)
        await drivers.until(lambda: bool(drivers.registry.findings), "refused")

    assert "it belongs to user 65534; expected root" in "".join(drivers.registry.findings.values())
    assert drivers.registry.drivers == {}


async def test_a_driver_that_hangs_again_and_again_is_asked_no_more_for_a_while(drivers: Drivers) -> None:
    """DVF-4."""
    drivers.start(prepare=["hang"] * 3)
    await drivers.registered()
    for _ in range(3):
        assert "did not answer in time" in await held(drivers.claims, shared_pod("one"))
    calls = len(drivers.calls())

    assert "is hung: 3 calls in a row had no answer" in await held(drivers.claims, shared_pod("one"))
    assert len(drivers.calls()) == calls
    await drivers.until(lambda: "is hung" in drivers.board.line("device-drivers").message, "told on the board")


def instance(name: str = DRIVER, endpoint: str = "/p/a.sock", user: int = 0) -> Instance:
    return Instance(name, endpoint, "v1.DRAPlugin", PluginPeer(user, "/pods/old"))


@pytest.mark.parametrize(
    ("info", "complaint"),
    [
        (PluginInfo(type="DRAPlugin", name="", versions=("v1.DRAPlugin",)), "is missing"),
        (PluginInfo(type="DRAPlugin", name="x" * 64, versions=("v1.DRAPlugin",)), "has 64 signs"),
        (
            PluginInfo(type="DRAPlugin", name=DRIVER, endpoint="a.sock", versions=("v1.DRAPlugin",)),
            "is no path of a socket",
        ),
        (
            PluginInfo(type="DRAPlugin", name=DRIVER, endpoint="/p/../a", versions=("v1.DRAPlugin",)),
            "is no path of a socket",
        ),
        (
            PluginInfo(type="DRAPlugin", name=DRIVER, endpoint="/" + "a" * 107, versions=("v1.DRAPlugin",)),
            "at most 107 bytes",
        ),
        (
            PluginInfo(type="DRAPlugin", name=DRIVER, endpoint="/p/a.sock", versions=("v1.DRAPlugin",)),
            "already registered",
        ),
        (
            PluginInfo(type="DRAPlugin", name=DRIVER, endpoint="/p/b.sock", versions=("v1.DRAPlugin",)),
            "by user 0 of control group /pods/old; user 7 of control group /pods/new may not add",
        ),
        (PluginInfo(type="DRAPlugin", name=DRIVER, versions=("v1\x1b",)), "'v1?'"),
    ],
)
def test_a_bad_registration_says_what_is_wrong(info: PluginInfo, complaint: str) -> None:
    """DVM-1, DVM-2, DVF-2."""
    known = {DRIVER: [instance()]} if "registered" in complaint or "user" in complaint else {}

    with pytest.raises(PluginRefused) as caught:
        judge(info, "/r/a-reg.sock", PluginPeer(7, "/pods/new"), (), known)
    assert complaint in str(caught.value)


def test_a_socket_with_the_name_of_another_is_a_finding() -> None:
    """DVF-2."""
    info = PluginInfo(type="DRAPlugin", name=DRIVER, versions=("v1.DRAPlugin",))

    assert judge(info, f"/r/{DRIVER}-uid-reg.sock", ROOT_USER, (), {}).finding == ""
    assert "registers gpu.example.com; expected" in judge(info, "/r/other-reg.sock", ROOT_USER, (), {}).finding


def test_a_driver_of_two_control_groups_is_told_of() -> None:
    """DVF-2: a rolling update has two, so it is no reason to refuse one."""
    info = PluginInfo(type="DRAPlugin", name=DRIVER, endpoint="/p/b.sock", versions=("v1.DRAPlugin",))
    old = instance()
    new = judge(info, f"/r/{DRIVER}-new-reg.sock", PluginPeer(0, "/pods/new"), (), {DRIVER: [old]})

    assert groups_note(DRIVER, [old, old]) == ""
    assert groups_note(DRIVER, [old, new]) == (
        f"driver {DRIVER} is registered by control group /pods/old, and added to by /pods/new"
    )


class Peers(PluginSockets):
    """Who listens is what a test says, by a part of the path."""

    def __init__(self, directory: Path, said: dict[str, PluginPeer]) -> None:
        super().__init__(directory, os.geteuid())
        self.said = said

    async def peer(self, path: str) -> PluginPeer:
        found = await super().peer(path)
        return next((one for part, one in self.said.items() if part in path), found)


async def test_the_groups_of_a_driver_are_on_the_board_while_they_are_two(drivers: Drivers) -> None:
    """DVF-2."""
    said = {"old": PluginPeer(0, "/pods/old"), "new": PluginPeer(0, "/pods/new")}
    drivers.registry._sockets = Peers(drivers.directory, said)
    first = drivers.start(f"{DRIVER}-old-reg.sock", instance="old")
    await drivers.until(lambda: "told True" in drivers.calls("old"), "registered")
    drivers.start(f"{DRIVER}-new-reg.sock", instance="new")
    await drivers.until(lambda: "told True" in drivers.calls("new"), "registered too")
    note = "is registered by control group /pods/old, and added to by /pods/new"
    await drivers.until(lambda: note in drivers.board.line("device-drivers").message, "told on the board")
    (report,) = [one for one in DeviceView(drivers.claims, {}, drivers.registry).drivers() if one.name == DRIVER]
    first.terminate()
    (drivers.directory / f"{DRIVER}-old-reg.sock").unlink(missing_ok=True)
    await drivers.until(lambda: note not in drivers.board.line("device-drivers").message, "gone from the board")

    assert report.peers == ("user 0 of control group /pods/old", "user 0 of control group /pods/new")


async def test_a_name_is_its_first_users_until_that_one_has_left(drivers: Drivers) -> None:
    """DVF-2: what was killed leaves its socket, and the name 30 s later."""
    said = {"other": PluginPeer(7, "/pods/other")}
    drivers.registry._sockets = Peers(drivers.directory, said)
    first = drivers.start(f"{DRIVER}-first-reg.sock", instance="first")
    await drivers.until(lambda: "told True" in drivers.calls("first"), "registered")
    other = drivers.start(f"{DRIVER}-other-reg.sock", instance="other")
    await drivers.until(lambda: any("told False" in one for one in drivers.calls("other")), "refused")
    refusal = "".join(drivers.registry.findings.values())
    first.kill()
    first.wait()
    driver = drivers.registry.drivers[DRIVER]
    await drivers.until(lambda: not driver._is_there, "away")
    await drivers.registry.look()
    drivers.clock.ahead_s += KEPT_S
    other.kill()
    other.wait()
    drivers.start(f"{DRIVER}-other2-reg.sock", instance="other2")
    await drivers.until(lambda: "told True" in drivers.calls("other2"), "has the name now")

    assert "user 7 of control group /pods/other may not add to it" in refusal
    assert [one.peer.user for one, _ in driver.instances] == [7]


async def test_the_group_of_who_listens_is_asked_of_the_kernel(short_path: Path) -> None:
    """DVF-2: nothing is told of a process that has ended, or of another user that has its number now."""
    path = short_path / "a.sock"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", LISTENS, str(path), **pipes)
    assert child.stdout is not None
    await child.stdout.readline()
    found = await PluginSockets(short_path).peer(str(path))
    held = os.pidfd_open(child.pid)
    of_another = group_of(child.pid, os.geteuid() + 1, held)
    proc = short_path / "proc"
    (proc / str(child.pid)).mkdir(parents=True)
    (proc / str(child.pid) / "cgroup").write_text("2:pids:/\n0::/kubepods/pod\x1b/a:b\n")
    told = group_of(child.pid, os.geteuid(), held, proc)
    child.kill()
    await child.wait()
    ended = group_of(child.pid, os.geteuid(), held, proc)
    os.close(held)

    assert found == PluginPeer(os.geteuid(), group_of(os.getpid(), os.geteuid(), os.pidfd_open(os.getpid())))
    assert found.group.startswith("/")
    assert (of_another, told, ended) == ("", "/kubepods/pod?/a:b", "")


LISTENS = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.bind(sys.argv[1]); one.listen(8); print("listens", flush=True); sys.stdin.read()
"""


async def test_beside_a_kubelet_nobody_registers_here(short_path: Path) -> None:
    """DVS-3: what kepd serves there itself is no kubelet."""
    path = short_path / "pod-resources/kubelet.sock"
    path.parent.mkdir()
    nobody = await kubelet_beside(short_path)
    server = await asyncio.start_unix_server(lambda _r, writer: writer.close(), path)
    own = await kubelet_beside(short_path)
    server.close()
    path.unlink(missing_ok=True)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", LISTENS, str(path), **pipes)
    assert other.stdout is not None
    await other.stdout.readline()
    why = await kubelet_beside(short_path)
    other.kill()
    await other.wait()

    assert (nobody, own) == ("", "")
    assert why == f"a kubelet serves this node: it accepts on {path}"
