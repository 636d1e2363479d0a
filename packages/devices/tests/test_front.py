# SPDX-License-Identifier: Apache-2.0
"""kepd between a plugin and a kubelet: what was used is reset before it is given again, whoever is killed. DVP-22 to
DVP-25.

The plugin is a process with a script, the kubelet fake_kubelet.py, both over real sockets.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, State
from agent.model.devices.plugin import PluginDevice
from agent.model.event import Event
from agent.model.refused import Refused
from kepd_devices.drivers.device_plugins.driver import PluginDirectory
from kepd_devices.drivers.device_plugins.front import KubeletFront
from kepd_devices.local.pool_rules import Command
from kepd_devices.plan.plugins.front import (
    FrontDevice,
    FrontRecord,
    Holding,
    Holdings,
    Use,
    decode_record,
    label_of,
    listed,
    looked,
    note_of,
    read_notes,
    with_note,
    without_strangers,
)
from kepd_devices.run.front.proxy import FrontSettings, PluginProxy
from kepd_devices.run.front.resource import NotGiven
from kepd_devices.run.front.view import FrontView
from kepd_devices.run.metrics import DeviceMetrics
from packages.devices.tests.fake_kubelet import FakeKubelet
from packages.devices.tests.test_own_drivers import script
from tests.fakes.state_files import FakeStateFiles

ROOT = Path(__file__).resolve().parents[3]
GPU = "example.com/gpu"
WITHIN_S = 30.0


class Runtime:
    """Containers as a runtime would show them."""

    def __init__(self) -> None:
        self.found: list[Holding] = []
        self.ready: set[str] = set()
        self.bells: list[asyncio.Event] = []

    async def look(self) -> Holdings:
        return Holdings(tuple(self.found), frozenset(self.ready))

    async def news(self) -> AsyncIterator[None]:
        bell = asyncio.Event()
        self.bells.append(bell)
        while True:
            yield
            await bell.wait()
            bell.clear()

    def begin(self, annotations: Any, sandbox: str) -> None:
        """A container is there with what Allocate answered."""
        now_s = time.time()
        self.found += [Holding(*one, sandbox, "default/web", created_s=now_s) for one in read_notes(dict(annotations))]
        self.ready.add(sandbox)
        self.ring()

    def end(self, sandbox: str) -> None:
        """Its containers stay in the list, exited."""
        self.ready.discard(sandbox)
        self.found = [replace(one, holds=one.sandbox in self.ready) for one in self.found]
        self.ring()

    def ring(self) -> None:
        for bell in self.bells:
            bell.set()


class Node:
    """A kubelet, kepd and a plugin, each of which can begin anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vendors = folder / "v"
        self.kubelet = FakeKubelet(folder / "k")
        self.runtime = Runtime()
        self.disk = FakeStateFiles()
        self.told: list[Event] = []
        self.board = Board(lambda: 0.0)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.resets = folder / "resets"
        self.gate = folder / "gate"
        self.gate.touch()
        body = f"while [ ! -e {self.gate} ]; do sleep 0.02; done; echo $DEVICE_NAME >> {self.resets}; cat {self.gate}"
        self.command = Command(command=(script(folder, body), "{name}"), timeout="20s")
        self.settings = FrontSettings(boot_id="b1", resets={GPU: self.command}, reset_limit_s=2.0)
        self.begin()

    def begin(self) -> None:
        self.front = PluginProxy(
            PluginDirectory(self.vendors), KubeletFront(self.folder / "k", label_of, NotGiven), self.runtime, self.disk,
            clock=SystemClock(), settings=lambda: self.settings, tell=self.told.append, metrics=DeviceMetrics(),
        )  # fmt: skip
        report = self.board.add("device-front", State.STARTING)
        self.task = asyncio.create_task(self.front.run(report))

    def start(self, **given: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "packages.devices.tests.scripted_plugin", str(self.vendors), json.dumps(given)]
        self.vendors.mkdir(exist_ok=True)
        process = subprocess.Popen(command, cwd=ROOT)
        self.processes.append(process)
        return process

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        for _ in range(int(WITHIN_S / 0.02)):
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {WITHIN_S} s: {what}; {self.kubelet.lists} {self.told} {self.board.lines()}")

    async def healthy(self, *devices: str) -> None:
        await self.until(lambda: self.kubelet.healthy(GPU) == sorted(devices), f"{devices} are healthy")

    def was_reset(self) -> list[str]:
        return self.resets.read_text().splitlines() if self.resets.exists() else []

    def calls(self) -> list[str]:
        path = self.vendors / "gpu.sock.calls"
        return path.read_text().splitlines() if path.exists() else []

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def end(self) -> None:
        await self.stop()
        await self.kubelet.stop()
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[Node]:
    made = Node(short_path)
    await made.kubelet.start()
    yield made
    await made.end()


async def test_a_device_is_reset_between_two_pods(node: Node) -> None:
    """DVP-22, DVP-23, DVP-24: also before the first, as nobody knows who had it last."""
    node.start(nodes=["/dev/null"])
    await node.healthy("gpu-0", "gpu-1")
    first = sorted(node.was_reset())
    answer = await node.kubelet.allocate(GPU, "gpu-0")
    assert await node.kubelet.pre_start(GPU, "gpu-0") == ""
    node.runtime.begin(answer.annotations, "s1")
    view = FrontView(node.front)
    await node.until(lambda: node.front.is_held(GPU, "gpu-0"), "it is held")
    devices = [(one.name, one.state, one.pods) async for _, one in view.devices("")]
    node.gate.unlink()
    node.runtime.end("s1")
    await node.healthy("gpu-1")
    node.gate.touch()
    await node.healthy("gpu-0", "gpu-1")

    assert first == ["gpu-0", "gpu-1"]
    assert node.kubelet.options[GPU].pre_start_required is True
    assert answer.envs == {"GPUS": "gpu-0"}
    assert [one.host_path for one in answer.devices] == ["/dev/null"]
    assert dict(answer.annotations) == dict([note_of(GPU, ["gpu-0"])])
    assert devices == [(f"{GPU}/gpu-0", "held", ("default/web",)), (f"{GPU}/gpu-1", "free", ())]
    assert node.was_reset()[2:] == ["gpu-0"]
    assert node.calls() == ["registered", "allocate gpu-0"]
    assert [(one.name, one.kind, one.devices, one.why_away) for one in view.drivers()] == [(GPU, "front", 2, "")]


async def test_a_kubelet_that_gives_a_device_at_once_waits_for_its_reset(node: Node) -> None:
    """DVP-24, DVX-5: whoever asks for another is not held; after the limit the reason is told."""
    node.start()
    await node.healthy("gpu-0", "gpu-1")
    answer = await node.kubelet.allocate(GPU, "gpu-0")
    node.runtime.begin(answer.annotations, "s1")
    await node.until(lambda: node.front.is_held(GPU, "gpu-0"), "held")
    node.gate.unlink()
    node.runtime.end("s1")
    waiting = asyncio.create_task(node.kubelet.allocate(GPU, "gpu-0"))
    other = await node.kubelet.allocate(GPU, "gpu-1")
    await node.until(lambda: node.front.metrics.holds["reset"] == 1, "the one that waits is counted")
    was_waiting = not waiting.done()
    holds = {one.labels["reason"]: one.value for it in node.front.metrics.families() if it.name == "kepd_device_holds"
             for one in it.samples}  # fmt: skip
    late = await waiting
    again = asyncio.create_task(node.kubelet.allocate(GPU, "gpu-0"))
    node.gate.touch()

    assert other.envs == {"GPUS": "gpu-1"}
    assert was_waiting
    assert late == "not reset within 2 s: gpu-0 is dirty; devices.front.resetTimeout"
    assert (await again).envs == {"GPUS": "gpu-0"}
    assert holds == {"reset": 1}
    assert node.front.metrics.holds["reset"] == 0


async def test_what_was_given_and_never_seen_is_reset_when_it_is_given_again(node: Node) -> None:
    """DVP-24: a pod that ended before its container was made."""
    node.start()
    await node.healthy("gpu-0", "gpu-1")
    await node.kubelet.allocate(GPU, "gpu-0")
    assert node.kubelet.healthy(GPU) == ["gpu-0", "gpu-1"]
    await node.kubelet.allocate(GPU, "gpu-0")

    assert node.was_reset()[2:] == ["gpu-0"]


async def test_a_sandbox_that_is_made_anew_gets_its_device_reset_before_the_container_starts(node: Node) -> None:
    """DVP-23, DVP-24: the kubelet calls no Allocate then."""
    node.start(pre_start="ok")
    await node.healthy("gpu-0", "gpu-1")
    answer = await node.kubelet.allocate(GPU, "gpu-0")
    await node.kubelet.pre_start(GPU, "gpu-0")
    node.runtime.begin(answer.annotations, "s1")
    await node.until(lambda: node.front.is_held(GPU, "gpu-0"), "held")
    assert await node.kubelet.pre_start(GPU, "gpu-0") == "", "a restart in the pod waits for nothing"
    assert node.was_reset()[2:] == []
    node.runtime.begin(answer.annotations, "s1")
    node.gate.unlink()
    node.runtime.end("s1")
    await node.healthy("gpu-1")
    starting = asyncio.create_task(node.kubelet.pre_start(GPU, "gpu-0"))
    await asyncio.sleep(0.1)
    was_waiting = not starting.done()
    node.gate.touch()

    assert was_waiting
    assert await starting == ""
    assert node.calls()[1:] == ["allocate gpu-0", *["pre_start gpu-0"] * 3]
    assert node.was_reset()[2:] == ["gpu-0"]


async def test_whoever_begins_anew_finds_what_pods_have(node: Node) -> None:
    """DVP-25: the kubelet, the plugin and kepd; what a pod has is reset by nobody, what was clean once is."""
    plugin = node.start()
    await node.healthy("gpu-0", "gpu-1")
    answer = await node.kubelet.allocate(GPU, "gpu-0")
    node.runtime.begin(answer.annotations, "s1")
    await node.until(lambda: node.front.is_held(GPU, "gpu-0"), "held")
    await node.kubelet.stop()
    await node.kubelet.start()
    await node.healthy("gpu-0", "gpu-1")
    plugin.kill()
    await node.healthy()
    away = FrontView(node.front).drivers()[0].why_away
    node.start()
    await node.healthy("gpu-0", "gpu-1")
    await node.stop()
    await node.until(lambda: node.kubelet.lists[GPU][-1] == {}, "its stream ended")
    node.begin()
    node.start()
    await node.healthy("gpu-0", "gpu-1")
    assert away == f"plugin {GPU} is away"
    assert "gpu-0" not in node.was_reset()[2:]
    await node.stop()
    await node.until(lambda: node.kubelet.lists[GPU][-1] == {}, "its stream ended")
    node.runtime.end("s1")
    node.begin()
    node.start()
    await node.healthy("gpu-0", "gpu-1")

    assert "gpu-0" in node.was_reset()[2:]
    assert node.kubelet.registered.count(GPU) == 4


async def test_a_device_that_cannot_be_reset_is_given_to_nobody_until_it_is(node: Node) -> None:
    """DVD-24, DVP-24."""
    (node.folder / "b").mkdir()
    bad = script(node.folder / "b", "exit 3")
    good = node.settings
    node.settings = FrontSettings(boot_id="b1", resets={GPU: Command(command=(bad,), retries=1)}, reset_limit_s=2.0)
    node.start(lists=[{"gpu-0": "Healthy"}])
    await node.until(lambda: "DeviceQuarantined" in [one.reason for one in node.told], "it is told")
    view = FrontView(node.front)
    why = await node.kubelet.allocate(GPU, "gpu-0")
    states = view.count_devices()
    with pytest.raises(Refused, match="stays in quarantine"):
        await view.reset(f"{GPU}/gpu-0")
    node.settings = good
    await view.reset(f"{GPU}/gpu-0")
    await node.healthy("gpu-0")

    assert "device gpu-0 of example.com/gpu is in quarantine" in why
    assert states == {(GPU, "quarantined"): 1}
    for name in (f"{GPU}/gpu-0", "gpu-0"):
        with pytest.raises(Refused):
            await view.reset(name)


async def test_only_plugins_of_the_configuration_stand_behind_kepd(node: Node) -> None:
    """DVP-22, DVV-11: neither another resource, nor a flood, nor a device that nobody lists."""
    node.start(endpoint="other.sock", resource="example.com/nic")
    path = node.vendors / "other.sock.calls"
    await node.until(lambda: path.exists() and "refused" in path.read_text(), "it is refused")
    node.start(flood=True)
    await node.until(lambda: "lists more than 4096 devices" in str(node.told), "the flood is refused")
    node.start(endpoint="good.sock")
    await node.healthy("gpu-0", "gpu-1")

    assert "devices.front.resources has no example.com/nic" in path.read_text()
    assert await node.kubelet.allocate(GPU, "gpu-7") == f"plugin {GPU} lists no device gpu-7"


async def test_a_full_disk_gives_nothing(node: Node) -> None:
    """DVM-44: what is given is on the disk first."""
    node.start()
    await node.healthy("gpu-0", "gpu-1")
    node.disk.failure = OSError(28, "No space left on device")
    why = await node.kubelet.allocate(GPU, "gpu-0")
    node.disk.failure = None

    assert "cannot be written" in why
    assert node.calls() == ["registered"]
    assert (await node.kubelet.allocate(GPU, "gpu-0")).envs == {"GPUS": "gpu-0"}


def test_notes_say_every_device_and_nothing_of_others() -> None:
    """DVP-22."""
    ids = ["gpu-0", "a,b", "50%", "x=y"]
    key, value = note_of(GPU, ids)

    assert key.startswith("kepd.dev/devices.")
    assert list(read_notes({key: value, "kepd.dev/devices.claims": "default/a=u"})) == [(GPU, one) for one in ids]
    assert list(read_notes({"kepd.dev/devices.0": value})) == []
    forged = {"maker": "example", key: "forged", "kepd.dev/devices.other": "forged"}
    assert with_note(forged, GPU, ids) == {"maker": "example", key: value}


def test_what_the_runtime_shows_decides_who_holds() -> None:
    """DVP-23, DVP-25."""
    used = FrontDevice(Use.USED, "s1")
    record = FrontRecord(resource=GPU, boot_id="b1", devices={"a": used, "b": FrontDevice(Use.CLEAN)})
    held = Holding(GPU, "b", "s2", "default/web")
    starting = FrontRecord(resource=GPU, devices={"a": FrontDevice(Use.USED, started_s=100.0)})

    assert looked(record, Holdings(ready_sandboxes=frozenset({"s1"})), 0.0) == {}
    assert looked(record, Holdings((held,)), 0.0) == {
        "a": FrontDevice(), "b": FrontDevice(Use.USED, "s2", "default/web")
    }  # fmt: skip
    assert looked(starting, Holdings(), 129.0) == {}
    assert looked(starting, Holdings(), 131.0) == {"a": FrontDevice()}
    assert [one.is_healthy for one in listed({name: PluginDevice(name) for name in "abc"}, record)] == [
        True,
        True,
        False,
    ]
    assert (
        decode_record(b'{"resource": "r", "boot_id": "b0", "devices": {"a": {"use": "used"}}}', "b1").of("a").use
        == "dirty"
    )
    assert without_strangers(record, {"c"}).devices == {"a": used}
    with pytest.raises(ValueError, match="version 7"):
        decode_record(b'{"resource": "r", "version": 7}', "b1")
