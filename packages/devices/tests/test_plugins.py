# SPDX-License-Identifier: Apache-2.0
"""Device plugins as processes with a script: they register, list, allocate, get sick, lie and die. DVP-1 to DVP-6."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, State
from agent.model.devices.container_devices import ContainerDevices, DeviceNode
from agent.model.devices.plugin import PluginAllocation, PluginDevice, PluginNode
from agent.model.devices.problem import DevicesNotReady, DevicesNotReleased
from agent.model.event import Event
from agent.model.pods.pod import PodSpec
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from kepd_devices.drivers.device_plugins.driver import PluginDirectory
from kepd_devices.local.pool_rules import Command
from kepd_devices.plan.plugins.plugin_choice import Unusable, checked_list, choose, natural, resource_fault, together
from kepd_devices.run.plugins import PluginDevices, PluginSettings
from packages.devices.tests.test_own_drivers import script
from tests.fakes.state_files import FakeStateFiles

ROOT = Path(__file__).resolve().parents[3]
GPU = "example.com/gpu"
WITHIN_S = 30.0
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, uid: uid-{name}}}
spec:
  initContainers: {inits}
  containers:
  - name: main
    image: i:1
    resources: {{limits: {{{limits}}}}}
"""


def pod(name: str = "web", count: int = 1, inits: str = "[]", limits: str = "") -> PodSpec:
    limits = limits or f"{GPU}: {count}"
    text = POD.format(name=name, inits=inits, limits=limits).encode()
    found = parse_objects("/m", text, NodeIdentity("n", has_name_suffix=False, gives_plugins=True))
    assert [str(one) for one in found.findings] == []
    return found.pods[0]


class Plugins:
    """A directory where processes register, over the lives of its manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = FakeStateFiles()
        self.settings = PluginSettings(boot_id="b1", allocate_limit_s=1.0)
        self.told: list[Event] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.board = Board(lambda: 0.0)
        self.begin()

    def begin(self) -> None:
        """A new process of kepd."""
        self.devices = PluginDevices(
            PluginDirectory(self.folder), self.disk, SystemClock(), lambda: self.settings, self.told.append
        )
        report = self.board.add("device-plugins", State.STARTING)
        self.task = asyncio.create_task(self.devices.run(report))

    def start(self, **given: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "packages.devices.tests.scripted_plugin", str(self.folder), json.dumps(given)]
        process = subprocess.Popen(command, cwd=ROOT)
        self.processes.append(process)
        return process

    def calls(self, endpoint: str = "gpu.sock") -> list[str]:
        path = self.folder / f"{endpoint}.calls"
        return path.read_text().splitlines() if path.exists() else []

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        for _ in range(int(WITHIN_S / 0.02)):
            if condition():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {WITHIN_S} s: {what}; {self.calls()} {self.told} {self.devices.unreadable}")

    async def listed(self, resource: str = GPU) -> None:
        await self.until(
            lambda: resource in self.devices.plugins and self.devices.plugins[resource].devices, "devices are listed"
        )

    async def why(self, one: PodSpec) -> str:
        """Why it does not get its devices; nothing where it has them."""
        try:
            await self.devices.hold(one)
        except DevicesNotReady as error:
            return f"{error.reason}: {error}"
        return ""

    @property
    def reasons(self) -> list[str]:
        return [one.reason for one in self.told]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def end(self) -> None:
        await self.stop()
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
async def plugins(short_path: Path) -> AsyncIterator[Plugins]:
    made = Plugins(short_path)
    yield made
    await made.end()


async def test_a_pod_gets_the_devices_of_its_limits_and_frees_them(plugins: Plugins) -> None:
    """DVP-1, DVP-3."""
    plugins.start(nodes=["/dev/null"])
    await plugins.listed()
    assert await plugins.why(pod(count=2)) == ""
    found = await plugins.devices.edits(pod(count=2), pod(count=2).containers[0])

    assert found.env == (("GPUS", "gpu-0,gpu-1"),)
    assert found.nodes == (DeviceNode("/dev/null", "/dev/gpu", "rw"),)
    assert plugins.calls() == ["registered", "allocate gpu-0 gpu-1"]
    assert list(plugins.disk.files) == ["plugins/uid-web.json"]
    assert await plugins.why(pod("other")) == (
        "UnexpectedAdmissionError: example.com/gpu: 1 asked for, 0 free of 2, 0 unhealthy"
    )
    await plugins.devices.release("uid-web")
    assert await plugins.why(pod("other")) == ""


async def test_a_restart_of_a_container_or_of_kepd_asks_for_nothing_new(plugins: Plugins) -> None:
    """DVP-3."""
    plugins.start()
    await plugins.listed()
    await plugins.devices.hold(pod())
    await plugins.stop()
    plugins.begin()
    await plugins.devices.hold(pod())
    found = await plugins.devices.edits(pod(), pod().containers[0])

    assert found.env == (("GPUS", "gpu-0"),)
    assert plugins.calls() == ["registered", "allocate gpu-0"]


async def test_devices_of_inits_that_ended_are_used_again(plugins: Plugins) -> None:
    """DVP-1."""
    plugins.start()
    await plugins.listed()
    init = f"[{{name: setup, image: 'i:1', resources: {{limits: {{{GPU}: 1}}}}}}]"

    assert await plugins.why(pod(count=2, inits=init)) == ""
    assert plugins.calls()[1:] == ["allocate gpu-0", "allocate gpu-0 gpu-1"]


async def test_what_the_plugin_prefers_comes_first(plugins: Plugins) -> None:
    """DVP-3."""
    plugins.start(preferred=["gpu-1"])
    await plugins.listed()
    await plugins.devices.hold(pod())

    assert plugins.calls()[1:] == ["preferred gpu-0 gpu-1", "allocate gpu-1"]


async def test_a_plugin_that_wants_it_is_asked_before_each_start(plugins: Plugins) -> None:
    """DVP-5."""
    plugins.start(pre_start="ok")
    await plugins.listed()
    await plugins.devices.hold(pod())
    for _ in range(2):
        await plugins.devices.edits(pod(), pod().containers[0])

    assert plugins.calls()[1:] == ["allocate gpu-0", "pre_start gpu-0", "pre_start gpu-0"]


async def test_a_start_that_the_plugin_refuses_fails(plugins: Plugins) -> None:
    """DVP-5."""
    plugins.start(pre_start="fail")
    await plugins.listed()
    await plugins.devices.hold(pod())

    with pytest.raises(DevicesNotReady, match="PreStartContainer fails: not yet"):
        await plugins.devices.edits(pod(), pod().containers[0])


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        ("fail", "plugin example.com/gpu: no? power"),
        ("nothing", "plugin example.com/gpu answers for no container"),
        ("bad-path", "plugin example.com/gpu answers with mount '../etc'; expected an absolute path"),
        ("mount /.", "plugin example.com/gpu answers with what mounts / of the host, which no device needs"),
        ("mount /tmp/../", "expected an absolute path without .."),
        ("mount /tmp//./x/.", ""),
        (
            "mount /run/own/kepd.sock",
            "mounts /run/own/kepd.sock of the host, where /run/own is; expected another place",
        ),
        ("mount /var//run/./own", "mounts /run/own of the host, where /run/own is"),
        ("mount /run", "mounts /run of the host, where /run/own is"),
        ("mount /proc/1/root", "mounts /proc/1/root of the host, which no device needs"),
        (
            "note kepd.dev/devices.claims",
            "annotation 'kepd.dev/devices.claims'; expected one of a domain of the maker's",
        ),
        ("note io.kubernetes.container.name", "annotation 'io.kubernetes.container.name'"),
        ("note bad\nkey", "annotation 'bad"),
        ("note cdi.k8s.io/gpu", ""),
        ("many", "answers with 5001 variables, mounts, nodes, annotations and ids; at most 4096"),
        ("bad-id", "plugin example.com/gpu answers with 'gpu0' is no CDI id"),
        ("hang", "plugin example.com/gpu: Deadline Exceeded"),
    ],
)
async def test_an_answer_that_cannot_be_used_frees_the_devices(plugins: Plugins, act: str, complaint: str) -> None:
    """DVP-3."""
    plugins.settings = replace(plugins.settings, private=("/run/own/",))
    plugins.start(allocate=[act])
    await plugins.listed()
    why = await plugins.why(pod())
    if not complaint:
        assert why == ""
        return

    assert complaint in why
    assert "\n" not in why
    assert plugins.disk.files == {}
    assert await plugins.why(pod("other", count=2)) == ""


async def test_a_device_that_gets_sick_is_told_and_given_to_nobody(plugins: Plugins) -> None:
    """DVP-6."""
    sick = {"gpu-0": "Unhealthy", "gpu-1": "Unhealthy"}
    plugins.start(lists=[{"gpu-0": "Healthy", "gpu-1": "Healthy"}, sick])
    await plugins.listed()
    await plugins.devices.hold(pod())
    (plugins.folder / "gpu.sock.next").write_text("x")
    await plugins.until(lambda: "DeviceUnhealthy" in plugins.reasons, "told")

    assert plugins.reasons.count("DeviceUnhealthy") == 1
    assert "1 asked for, 0 free of 2, 2 unhealthy" in await plugins.why(pod("other"))
    assert (await plugins.devices.edits(pod(), pod().containers[0])).env == (("GPUS", "gpu-0"),)


async def test_a_plugin_that_ends_keeps_what_pods_have_and_gives_nothing_new(plugins: Plugins) -> None:
    """DVP-6, DVX-7."""
    process = plugins.start()
    await plugins.listed()
    await plugins.devices.hold(pod())
    process.kill()
    await plugins.until(lambda: "DriverAway" in plugins.reasons, "told")

    assert "no plugin is registered for it" in await plugins.why(pod("other"))
    assert (await plugins.devices.edits(pod(), pod().containers[0])).env == (("GPUS", "gpu-0"),)
    await plugins.until(lambda: f"{GPU} is away" in plugins.board.line("device-plugins").message, "told on the board")
    assert plugins.board.line("device-plugins").state is State.READY
    plugins.start(endpoint="new.sock")
    await plugins.until(lambda: plugins.devices.plugins[GPU].endpoint == "new.sock", "another takes its place")
    await plugins.listed()
    assert await plugins.why(pod("other")) == ""
    assert plugins.calls("new.sock")[-1] == "allocate gpu-1"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"version": "v1alpha"}, "version 'v1alpha' is not known; expected v1beta1"),
        ({"resource": "gpu"}, "'gpu' is no extended resource; expected DOMAIN/NAME"),
        ({"resource": "kubernetes.io/gpu"}, "'kubernetes.io/gpu' belongs to Kubernetes"),
        ({"registers": "../gpu.sock"}, "endpoint '../gpu.sock' is no name of a file beside this socket"),
        ({"registers": "a\0b"}, "is no name of a file beside this socket"),
        ({"registers": "a%2fb"}, "endpoint 'a%2fb' is no name of a file beside this socket"),
        ({"registers": "x" * 81}, "is no name of a file beside this socket"),
        ({"registers": "kubelet.sock"}, "endpoint 'kubelet.sock' is no name of a file beside this socket"),
    ],
)
async def test_who_cannot_be_registered_is_told_why(plugins: Plugins, given: Any, complaint: str) -> None:
    """DVP-2."""
    plugins.start(**given)
    await plugins.until(lambda: plugins.calls(), "answered")

    assert complaint in plugins.calls()[0]
    assert plugins.devices.plugins == {}
    assert plugins.reasons == ["DriverRefused"]


async def test_a_plugin_that_hangs_keeps_pods_of_others_neither_from_starting_nor_from_ending(
    plugins: Plugins,
) -> None:
    """DVP-8: nor those of its own from ending."""
    plugins.settings = replace(plugins.settings, allocate_limit_s=60.0)
    plugins.start(allocate=["ok", "hang"])
    plugins.start(endpoint="nic.sock", resource="example.com/nic", lists=[{"nic-0": "Healthy"}])
    await plugins.listed()
    await plugins.listed("example.com/nic")
    await plugins.devices.hold(pod("first"))
    hangs = asyncio.create_task(plugins.why(pod("hangs")))
    await plugins.until(lambda: "allocate gpu-1" in plugins.calls(), "the plugin hangs")
    other = pod("other", limits="example.com/nic: 1")
    started = await plugins.why(other)
    given = await plugins.devices.edits(other, other.containers[0])
    await plugins.devices.release("uid-other")
    await plugins.devices.release("uid-first")
    third = await plugins.why(pod("third", count=2))
    await plugins.devices.release("uid-hangs")
    plugins.processes[0].kill()

    assert (started, given.env) == ("", (("GPUS", "nic-0"),))
    assert "1 free of 2" in third
    assert "plugin example.com/gpu" in await hangs
    assert plugins.disk.files == {}


async def test_a_list_is_counted_before_anything_is_made_of_it(plugins: Plugins) -> None:
    plugins.start(lists=["tiny"])
    await plugins.until(lambda: "DriverAway" in plugins.reasons, "refused")

    assert "it lists more than 4096 devices, in 4000000 bytes" in plugins.told[-1].message


async def test_a_second_plugin_of_a_resource_is_refused_while_the_first_lives(plugins: Plugins) -> None:
    """DVP-2."""
    plugins.start()
    await plugins.listed()
    plugins.start(endpoint="thief.sock")
    await plugins.until(lambda: plugins.calls("thief.sock"), "answered")

    assert plugins.calls("thief.sock") == ["refused example.com/gpu is registered by gpu.sock, which is alive"]


async def test_a_flood_of_devices_costs_that_plugin_alone(plugins: Plugins) -> None:
    """DVV-11."""
    plugins.start(flood=True)
    await plugins.until(lambda: "DriverAway" in plugins.reasons, "refused")

    assert "it lists more than 4096 devices" in plugins.told[-1].message
    assert "no plugin is registered for it" in await plugins.why(pod())


async def test_two_plugins_that_set_one_variable_differently_fail_the_container(plugins: Plugins) -> None:
    """DVP-4."""
    plugins.start()
    plugins.start(endpoint="nic.sock", resource="example.com/nic", lists=[{"nic-0": "Healthy"}])
    await plugins.listed()
    await plugins.listed("example.com/nic")
    one = pod(limits=f"{GPU}: 1, example.com/nic: 1")
    await plugins.devices.hold(one)

    with pytest.raises(DevicesNotReady, match=r"example\.com/gpu and example\.com/nic set variable GPUS to different"):
        await plugins.devices.edits(one, one.containers[0])


async def test_devices_are_reset_after_their_pod(plugins: Plugins, tmp_path: Path) -> None:
    """DVP-20."""
    flag, out = tmp_path / "mended", tmp_path / "out"
    command = script(tmp_path, f"[ -e {flag} ] && echo $1 $DEVICE_RESOURCE >> {out}")
    plugins.settings = replace(plugins.settings, resets={GPU: Command(command=(command, "{name}"))})
    plugins.start()
    await plugins.listed()
    await plugins.devices.hold(pod())

    with pytest.raises(DevicesNotReleased, match=r"device gpu-0 of example\.com/gpu could not be reset"):
        await plugins.devices.release("uid-web")
    flag.touch()
    await plugins.devices.release("uid-web")
    assert out.read_text() == f"gpu-0 {GPU}\n"
    assert plugins.disk.files == {}


async def test_a_device_is_reset_before_a_container_starts_again_where_that_is_wanted(
    plugins: Plugins, tmp_path: Path
) -> None:
    """DVP-20: not before its first start, and also where kepd began anew meanwhile."""
    out = tmp_path / "out"
    reset = Command(command=(script(tmp_path, f"echo $DEVICE_NAME >> {out}"),), per_container=True)
    plugins.settings = replace(plugins.settings, resets={GPU: reset})
    plugins.start()
    await plugins.listed()
    one = pod(count=1)
    assert await plugins.why(one) == ""
    await plugins.devices.edits(one, one.containers[0])
    at_first = out.exists()
    await plugins.stop()
    plugins.begin()
    await plugins.devices.edits(one, one.containers[0])
    again = out.read_text()
    plugins.settings = replace(plugins.settings, resets={GPU: replace(reset, command=("/bin/false",))})
    with pytest.raises(DevicesNotReady, match="could not be reset: /bin/false ended with exit code 1"):
        await plugins.devices.edits(one, one.containers[0])

    assert (at_first, again) == (False, "gpu-0\n")


async def test_what_pods_had_that_are_gone_or_of_another_boot_is_free(plugins: Plugins) -> None:
    """DVM-41, DVM-45."""
    plugins.start()
    await plugins.listed()
    await plugins.devices.hold(pod())
    await plugins.devices.hold(pod("other"))
    await plugins.devices.reconcile(lambda: {"uid-other"})
    assert list(plugins.devices.records) == ["uid-other"]

    plugins.settings = replace(plugins.settings, boot_id="b2")
    await plugins.devices.reconcile(lambda: {"uid-other"})
    assert (plugins.devices.records, plugins.disk.files) == ({}, {})


def devices(**nodes: tuple[int, ...]) -> dict[str, PluginDevice]:
    return {name.replace("_", "-"): PluginDevice(name.replace("_", "-"), nodes=node) for name, node in nodes.items()}


@pytest.mark.parametrize(
    ("count", "kept", "preferred", "chosen"),
    [
        (2, [], [], ["b-1", "b-2"]),
        (1, [], ["a-1"], ["a-1"]),
        (3, ["x"], ["gone", "b-10"], ["x", "b-10", "b-1"]),
        (1, ["x"], ["a-1"], ["x"]),
    ],
)
def test_devices_come_from_the_node_with_most_that_is_free(
    count: int, kept: list[str], preferred: list[str], chosen: list[str]
) -> None:
    """DVP-3."""
    free = devices(a_1=(0,), b_10=(1,), b_2=(1,), b_1=(1,))

    assert choose(free, count, kept, preferred) == chosen


def test_names_are_in_the_order_of_people() -> None:
    assert sorted(["gpu-10", "gpu-2", "gpu", "a1b2"], key=natural) == ["a1b2", "gpu", "gpu-2", "gpu-10"]


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        ([PluginDevice("a"), PluginDevice("a")], "it lists device 'a' twice"),
        ([PluginDevice("")], "it lists a device without an id"),
        ([PluginDevice("9" * 5000)], "it lists a device whose id has 5000 signs; expected at most 256"),
    ],
)
def test_a_list_that_cannot_be_is_refused(listed: list[PluginDevice], complaint: str) -> None:
    with pytest.raises(Unusable, match=complaint):
        checked_list(listed)


def test_answers_are_merged_by_resource() -> None:
    """DVP-4."""
    first = PluginAllocation(env={"A": "1"}, nodes=(PluginNode("/dev/a", "/dev/x"),), cdi_ids=("a.b/cc=0",))
    second = PluginAllocation(env={"A": "1", "B": "2"}, annotations={"note": "n"}, cdi_ids=("a.b/cc=0",))

    assert together([("z/z", second), ("a/a", first)]) == ContainerDevices(
        env=(("A", "1"), ("B", "2")),
        nodes=(DeviceNode("/dev/a", "/dev/x", "rwm"),),
        cdi_ids=("a.b/cc=0",),
        notes=(("note", "n"),),
    )


@pytest.mark.parametrize("name", ["example.com/gpu", "requests.example.com/gpu"])
def test_an_extended_resource_has_a_domain(name: str) -> None:
    assert resource_fault(name) == ""


async def test_a_record_that_cannot_be_read_stops_new_devices_until_a_person_decides(plugins: Plugins) -> None:
    """DVM-42, for plugins: nobody knows what it holds."""
    await plugins.stop()
    plugins.disk.files["plugins/uid-old.json"] = b"{"
    plugins.begin()
    plugins.start()
    await plugins.listed()
    why = await plugins.why(pod())
    await plugins.until(lambda: plugins.board.lines()[-1].state is State.DEGRADED, "the board says so")

    assert "plugins/uid-old.json cannot be read" in why
    assert await plugins.devices.forget("uid-other") is False
    assert await plugins.devices.forget("uid-old") is True
    assert (await plugins.why(pod()), list(plugins.disk.files)) == ("", ["plugins/uid-web.json"])


async def test_a_plugin_that_sends_lists_without_end_is_read_no_faster(plugins: Plugins) -> None:
    """DVF-5: others do not notice."""
    taken: list[str] = []
    plugins.devices.changed = lambda: taken.append("list")
    plugins.start(chatter=True)
    plugins.start(endpoint="nic.sock", resource="example.com/nic")
    await plugins.listed()
    await plugins.listed("example.com/nic")
    before = len(taken)
    await asyncio.sleep(1.0)

    assert len(taken) - before <= 11
    assert await plugins.why(pod(limits="example.com/nic: 1")) == ""


async def test_of_lists_in_a_burst_the_last_counts_soon(plugins: Plugins) -> None:
    """DVF-5: not one after the other."""
    taken: list[str] = []
    plugins.devices.changed = lambda: taken.append("list")
    plugins.start(burst=400)
    await plugins.until(
        lambda: GPU in plugins.devices.plugins and "burst-399" in plugins.devices.plugins[GPU].devices, "the last"
    )

    assert len(taken) < 200
