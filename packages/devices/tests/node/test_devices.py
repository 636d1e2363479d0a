# SPDX-License-Identifier: Apache-2.0
"""Pods that claim devices on a real runtime: what containers see, and what is left when kepd is killed at every step.

The devices are nodes that this test makes below /dev, each a second /dev/null; resets write lines that are counted.
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
import yaml

from agent.wire.kubelet import pod_resources_v1_pb2 as pod_resources
from tests.host.process import PROGRAMS, ROOT, Kepd
from tests.lab import Image, Lab
from tests.node.pods import Actor, Stage
from tests.node.stepping import SteppingRelay
from tests.node.test_pod_kills import Kills, is_gone, is_up
from tests.node.test_pod_life import events

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

PLANES = "pods,devices"
FAKE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: fakes}
spec:
  spec:
    devices:
      requests: [{name: two, exactly: {deviceClassName: fake.kepd.dev, count: 2}}]
      config:
      - opaque:
          driver: fake.kepd.dev
          parameters: {apiVersion: fake.kepd.dev/v1alpha1, kind: FakeClaimParameters, spec: {split: 2}}
"""
MODEM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: modem}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: devices.kepd.dev}}]}}}
"""


class Modems:
    """Nodes below /dev, and the commands that are run for them."""

    def __init__(self, folder: Path, cdi: Path, count: int) -> None:
        self.folder = folder
        self.cdi = cdi
        # Where kepd alone looks: what lies there the runtime never sees.
        self.own_cdi = folder / "cdi"
        self.mark = f"kepd-test-{uuid4().hex[:8]}"
        self.witness = folder / "witness"
        self.started = folder / "started"
        self.nodes = [Path(f"/dev/{self.mark}-{letter}") for letter in "abc"[:count]]
        for node in self.nodes:
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (folder / "share").mkdir()
        (folder / "share" / "words").write_text("hello\n")

    def command(self, word: str) -> str:
        """Writes down that it ran, and starts what leaves its session; where `kill-WORD` is, it ends kepd, once."""
        path = self.folder / word
        flag = self.folder / f"kill-{word}"
        path.write_text(
            f"#!/bin/sh\necho {word} $DEVICE_NAME $CLAIM_UID >> {self.witness}\n"
            f"setsid sleep 600 > {os.devnull} 2>&1 &\necho $! >> {self.started}\n"
            # Its parent, unless that was killed already.
            f"if [ -e {flag} ] && grep -qx kepd /proc/$PPID/comm; then rm {flag}; kill -9 $PPID; fi\n"
        )
        path.chmod(0o755)
        return str(path)

    def config(self) -> str:
        share = {"hostPath": str(self.folder / "share"), "containerPath": "/usr/share/modem", "readOnly": True}
        pool = {
            "match": {"glob": f"/dev/{self.mark}-*"}, "name": "modem-{index}", "env": {"MODEM": "{name}"},
            "nodes": [{"path": "{path}", "as": "/dev/modem", "permissions": "rw"}], "mounts": [share],
            "prepare": {"command": [self.command("prepare")]}, "reset": {"command": [self.command("reset")]},
        }  # fmt: skip
        devices = {
            "manager": {"enabled": True, "registry": str(self.folder / "r"), "slices": str(self.folder / "s")},
            "cdi": {"directories": [str(self.own_cdi), str(self.cdi)], "output": str(self.cdi)},
            "plugins": {"enabled": True, "directory": str(self.folder / "p")},
            "driver": {"enabled": True, "fake": {"count": 4}, "pools": [pool]},
            "podResources": str(self.folder / "k" / "r.sock"),
        }
        return f"devices: {json.dumps(devices)}\n"

    def ran(self, word: str) -> list[str]:
        lines = self.witness.read_text().splitlines() if self.witness.exists() else []
        return [line.split()[1] for line in lines if line.split()[0] == word]

    def running(self) -> list[str]:
        """What commands started and nobody ended."""
        started = self.started.read_text().split() if self.started.exists() else []
        return [one for one in started if is_running(one)]

    def remains(self, state: Path) -> list[str]:
        """Records of claims, and CDI files."""
        places = (state / "devices" / "claims", self.cdi)
        return [str(one) for place in places if place.exists() for one in place.iterdir()]

    def remove(self) -> None:
        for one in self.running():
            os.kill(int(one), signal.SIGKILL)
        for node in (*self.nodes, *self.cdi.glob("*")):
            node.unlink()


def is_running(pid: str) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().split()[2] != "Z"


@pytest.fixture
def modems(lab: Lab, short_path: Path) -> Iterator[Modems]:
    folder = short_path / "modems"
    folder.mkdir()
    made = Modems(folder, lab.place.cdi, 2)
    yield made
    made.remove()


def pods_config(lab: Lab, short_path: Path) -> str:
    root = lab.place.cgroup_parent.strip("/")
    return f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: ''}}\n"


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int, modems: Modems) -> Iterator[Kepd]:
    extra = pods_config(lab, short_path) + modems.config()
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as daemon:
        daemon.start("--planes", PLANES).wait_ready()
        yield daemon
        for path in daemon.manifests.iterdir():
            path.unlink()
        daemon.wait(lambda: not daemon.pods(), "all pods gone", within_s=60)


def stage_of(kepd: Kepd, lab: Lab, name: str = "play") -> Stage:
    return Stage(kepd, lab.push(Image(name="node/devices")), name)


def claiming(stage: Stage, template: str, script: str = "env > /out/env") -> None:
    """A pod with one container that has the devices of a claim, runs a script and goes on."""
    app = Actor("app", 0.0).container(stage.image, stage.out)
    app["command"] = ["sh", "-c", f"{script}; {app['command'][2]}"]
    app["resources"] = {"claims": [{"name": "mine"}]}
    claims = [{"name": "mine", "resourceClaimTemplateName": template}]
    stage.write([], containers=[app], resourceClaims=claims)


def variables(stage: Stage) -> dict[str, str]:
    text = (stage.out / "env").read_text()
    return dict(line.partition("=")[::2] for line in text.splitlines())


def has_cdi(lab: Lab) -> bool:
    """containerd 1.7 does if it is told to, which the lab does not."""
    return lab.containerd.version >= (2, 0)


def add(kepd: Kepd, name: str, text: str) -> None:
    hidden = kepd.manifests / f".{name}"
    hidden.write_text(text)
    hidden.rename(kepd.manifests / f"{name}.yaml")


def shown(kepd: Kepd, *command: str) -> list[list[str]]:
    """The first columns of a list."""
    lines = [line.split() for line in kepd.ctl(*command).stdout.splitlines()]
    return [lines[0], *(line[:2] for line in lines[1:])]


def watched(kepd: Kepd, kind: str) -> list[list[str]]:
    """The first two lines of a list that goes on."""
    command = [str(PROGRAMS / "kepctl"), "--endpoint", str(kepd.socket), "get", kind, "-w"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(2)]
        process.kill()
    return lines


def test_a_container_sees_the_variables_of_fake_devices(kepd: Kepd, lab: Lab, modems: Modems) -> None:
    """DVD-30, DVX-6: as in the talk; after the end nothing is left."""
    add(kepd, "fakes", FAKE)
    stage = stage_of(kepd, lab)
    claiming(stage, "fakes")
    stage.wait(lambda: stage.lines("app"), "it runs")
    found = variables(stage)

    assert (found["DRA_RESOURCE_DRIVER_NAME"], found["FAKE_NODE_NAME"]) == ("fake.kepd.dev", "n1")
    assert sorted(name for name in found if name.startswith("FAKE_DEVICE")) == [f"FAKE_DEVICE_{n}" for n in range(4)]
    assert len(modems.remains(kepd.folder / "state")) == 2
    status = json.loads(kepd.ctl("get", "pod", "play-n1", "-o", "json").stdout)["status"]
    (devices,) = status["containerStatuses"][0]["allocatedResourcesStatus"]
    assert [one["name"] for one in status["resourceClaimStatuses"]] == ["mine"]
    assert (devices["name"], [one["health"] for one in devices["resources"]]) == ("claim:mine", ["Healthy"] * 2)
    stage.remove()
    stage.wait_gone()
    assert modems.remains(kepd.folder / "state") == []
    assert modems.ran("reset") == []


def test_a_container_sees_node_mount_and_variable_of_a_device(kepd: Kepd, lab: Lab, modems: Modems) -> None:
    """DVC-3, DVD-22, DVD-24: merged for a runtime without CDI; two pods never have one device, and each is reset."""
    add(kepd, "modem", MODEM)
    script = "env > /out/env; [ -c /dev/modem ] && echo word > /dev/modem && cp /usr/share/modem/words /out/words"
    script += "; touch /usr/share/modem/mine 2> /dev/null && echo writable > /out/words"
    first, second, third = (stage_of(kepd, lab, name) for name in ("first", "second", "third"))
    for stage in (first, second):
        claiming(stage, "modem", script)
        stage.wait(lambda stage=stage: stage.lines("app"), "it runs")
    claiming(third, "modem", script)
    third.wait(lambda: "ClaimUnallocatable" in dict(events(third)), "it waits")

    assert shown(kepd, "get", "devices") == [
        ["NAME", "STATE", "CLAIM", "POD", "SINCE"],
        *([f"devices.kepd.dev/n1/modem-{number}", "held"] for number in (0, 1)),
        *([f"fake.kepd.dev/n1/fake-{number}", "free"] for number in range(4)),
    ]
    claims = kepd.ctl("get", "claims").stdout
    assert "prepared" in claims
    assert "devices.kepd.dev/n1/modem-1" in claims
    assert shown(kepd, "get", "drivers")[1:] == [["devices.kepd.dev", "own"], ["fake.kepd.dev", "own"]]
    path, *_ = modems.cdi.glob("*.json")
    spec = json.loads(path.read_text())
    told = kepd.ctl("explain", "cdi", f"{spec['kind']}={spec['devices'][0]['name']}", "--runtime", "containerd 1.6.20")
    assert told.returncode == 0
    assert "- containerd 1.6.20 is given: node /dev/modem of /dev/kepd-test-" in told.stdout
    assert "- has: env MODEM\n" in told.stdout
    assert watched(kepd, "devices")[1][:2] == ["devices.kepd.dev/n1/modem-0", "held"]
    done = kepd.ctl("explain", "claim", "--pod", "third-n1")
    assert done.returncode == 1
    assert "modem-0  in-use default/first-n1-mine-" in done.stdout
    assert "would have to end" in done.stdout
    first_line, *rest = kepd.ctl("explain", "pod", "third-n1").stdout.splitlines()
    assert "a claim of it gets no device of this node: 0 of 1 for default/third-n1-mine-" in first_line
    assert "  try:  kepctl explain claim --pod default/third-n1" in rest
    claim = next(line.split()[1] for line in claims.splitlines() if "first" in line)
    described = kepd.ctl("describe", "claim", claim).stdout
    assert "State:      prepared" in described
    assert re.search(r"^  Normal +ClaimAllocated ", described, re.MULTILINE)
    assert 'kepd_devices{driver="devices.kepd.dev",state="held"} 2' in kepd.get("/metrics")[1]
    assert [(stage.out / "words").read_text() for stage in (first, second)] == ["hello\n", "hello\n"]
    assert {variables(stage)["MODEM"] for stage in (first, second)} == {"modem-0", "modem-1"}
    assert "0 of 1 for default/third-n1-mine-" in dict(events(third))["ClaimUnallocatable"]
    first.remove()
    third.wait(lambda: third.lines("app"), "it has the device that is free now")
    assert variables(third)["MODEM"] == variables(first)["MODEM"]
    assert modems.ran("reset") == [variables(first)["MODEM"]]


def test_kepd_is_killed_at_every_step_of_a_claim(lab: Lab, short_path: Path, free_port: int, modems: Modems) -> None:
    """DVM-40, DVD-23: before and after each step at the runtime, in a prepare and in a reset: one device for the pod
    all the time, a reset in the end, and nothing left, also of what commands started."""
    extra = pods_config(lab, short_path) + modems.config()
    with (
        SteppingRelay(short_path, lab.endpoint, lambda _: True) as relay,
        Kepd(short_path, free_port, endpoint=relay.endpoint, extra=extra) as daemon,
    ):
        stage = stage_of(daemon, lab)
        kills = Kills(daemon, relay, stage, PLANES)
        relay.happens = kills.kill
        add(daemon, "modem", MODEM)
        claiming(stage, "modem", "env >> /out/env; true")
        for word in ("prepare", "reset"):
            (modems.folder / f"kill-{word}").touch()

        kills.survive(lambda: bool(stage.lines("app")) and is_up(daemon), "it runs")
        assert {line for line in (stage.out / "env").read_text().splitlines() if "MODEM=" in line} == {"MODEM=modem-0"}
        assert set(modems.ran("prepare")) == {"modem-0"}
        assert modems.ran("reset") == []
        assert not (modems.folder / "kill-prepare").exists()

        stage.remove()
        state = daemon.folder / "state"
        kills.survive(lambda: is_gone(stage) and not modems.remains(state), "nothing is left")
        assert set(modems.ran("reset")) == {"modem-0"}
        assert len(modems.ran("reset")) >= 2
        assert not (modems.folder / "kill-reset").exists()
        assert len(modems.started.read_text().split()) >= 4
        assert modems.running() == []
        relay.happens = lambda _step, _at: False


SLICES = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus}
spec:
  driver: gpu.example.com
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpus}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: gpus}}]}}}
"""


def test_a_driver_in_a_process_of_its_own_gives_its_devices(kepd: Kepd, lab: Lab, modems: Modems) -> None:
    """DVM-1, DVC-2 to DVC-5: what its CDI file says is there once. A hook is run by a runtime that knows CDI; for
    others it is refused, and no container is made."""
    cdi = {"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": []}
    edits = {"env": ["GPU=0"], "deviceNodes": [{"path": "/dev/gpu", "hostPath": str(modems.nodes[0])}]}

    def write(edits: dict) -> None:
        path = modems.cdi / "example.com-gpu.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**cdi, "devices": [{"name": "0", "containerEdits": edits}]}))

    write(edits)
    (modems.folder / "r").mkdir(exist_ok=True)
    given = {"name": "gpu.example.com", "socket": str(modems.folder / "r" / "gpu.example.com-reg.sock"), "pool": "n1"}
    command = [sys.executable, "-m", "packages.devices.tests.scripted_driver", str(modems.folder), json.dumps(given)]
    driver = subprocess.Popen(command, cwd=ROOT)
    try:
        add(kepd, "gpus", SLICES)
        stage = stage_of(kepd, lab)
        claiming(stage, "gpu", "env > /out/env; [ -c /dev/gpu ] && touch /out/node")
        stage.wait(lambda: stage.lines("app"), "it runs")
        assert variables(stage)["GPU"] == "0"
        assert (stage.out / "node").exists()
        stage.remove()
        stage.wait_gone()

        witness = modems.folder / "hook"
        hook = {"hookName": "createRuntime", "path": "/usr/bin/touch", "args": ["touch", str(witness)]}
        write({**edits, "hooks": [hook]})
        other = stage_of(kepd, lab, "other")
        claiming(other, "gpu")
        if has_cdi(lab):
            other.wait(lambda: other.lines("app"), "it runs")
            assert witness.exists()
        else:
            other.wait(lambda: "CDINotSupported" in dict(events(other)), "told")
            told = dict(events(other))["CDINotSupported"]
            assert "has a createRuntime hook, /usr/bin/touch; a runtime that knows CDI is needed" in told
            assert (other.pod() or {}).get("containers", [{}])[0].get("id", "") == ""
        other.remove()
        other.wait_gone()
    finally:
        driver.kill()
        driver.wait()
    calls = (modems.folder / "gpu.example.com.calls").read_text().splitlines()
    # The first call may come before the driver has heard that it is registered.
    asked = [one.split()[0] for one in calls if one.split()[0] not in ("serves", "told")]
    assert asked == ["prepare", "unprepare", "prepare", "unprepare"]


def told_to_exporters(socket: Path) -> list[tuple[str, str, str, list[str]]]:
    """Pod, container, resource and devices, as exporters of vendors ask for them."""
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            pod_resources.ListPodResourcesRequest.SerializeToString,
            pod_resources.ListPodResourcesResponse.FromString,
        )
        answer = call(pod_resources.ListPodResourcesRequest(), timeout=10)
    return [
        (pod.name, one.name, it.resource_name, list(it.device_ids))
        for pod in answer.pod_resources for one in pod.containers for it in one.devices
    ]  # fmt: skip


def test_a_device_plugin_gives_its_devices_by_limits(kepd: Kepd, lab: Lab, modems: Modems) -> None:
    """DVP-1, DVP-3: a second pod waits for the device, and has it when the first has ended."""
    given = {"lists": [{"gpu-0": "Healthy"}], "nodes": [str(modems.nodes[0])]}
    folder = modems.folder / "p"
    command = [sys.executable, "-m", "packages.devices.tests.scripted_plugin", str(folder), json.dumps(given)]
    plugin = subprocess.Popen(command, cwd=ROOT)
    try:
        first, second = (stage_of(kepd, lab, name) for name in ("first", "second"))
        for stage in (first, second):
            app = Actor("app", 0.0).container(stage.image, stage.out)
            app["command"] = ["sh", "-c", f"env > /out/env; [ -c /dev/gpu ] && touch /out/node; {app['command'][2]}"]
            app["resources"] = {"limits": {"example.com/gpu": 1}}
            stage.write([], containers=[app])
            if stage is first:
                stage.wait(lambda: first.lines("app"), "it runs")
        second.wait(lambda: "UnexpectedAdmissionError" in dict(events(second)), "it waits")
        assert "1 asked for, 0 free of 1" in dict(events(second))["UnexpectedAdmissionError"]
        assert (variables(first)["GPUS"], (first.out / "node").exists()) == ("gpu-0", True)
        assert ["example.com/gpu/gpu-0", "held"] in shown(kepd, "get", "devices")
        assert ["example.com/gpu", "plugin"] in shown(kepd, "get", "drivers")
        assert told_to_exporters(modems.folder / "k" / "r.sock") == [("first-n1", "app", "example.com/gpu", ["gpu-0"])]
        first.remove()
        second.wait(lambda: second.lines("app"), "it has the device now")
        second.remove()
        second.wait_gone()
    finally:
        plugin.kill()
        plugin.wait()


def test_a_device_that_cannot_be_reset_is_kept_back_until_it_is(kepd: Kepd, lab: Lab, modems: Modems) -> None:
    """DVD-24: the pod ends, nobody gets the device, and kepctl frees it."""
    good = (modems.folder / "reset").read_text()
    (modems.folder / "reset").write_text("#!/bin/sh\nexit 1\n")
    add(kepd, "modem", MODEM)
    stage = stage_of(kepd, lab)
    claiming(stage, "modem")
    stage.wait(lambda: stage.lines("app"), "it runs")
    stage.remove()
    stage.wait_gone()
    name = "devices.kepd.dev/n1/modem-0"
    assert [name, "quarantined"] in shown(kepd, "get", "devices")
    assert "stays in quarantine" in kepd.ctl("reset", "device", name).stderr
    (modems.folder / "reset").write_text(good)

    assert kepd.ctl("reset", "device", name).stdout == f"device {name} is reset\n"
    assert [name, "free"] in shown(kepd, "get", "devices")
    assert kepd.ctl("release", "claim", "u-1").returncode == 2
    assert "no claim with uid u-1" in kepd.ctl("release", "claim", "u-1", "--force").stderr


def test_what_pods_held_that_ended_while_kepd_was_away_is_given_back(kepd: Kepd, lab: Lab, modems: Modems) -> None:
    """DVM-41: also where even the record of the pod is gone."""
    add(kepd, "modem", MODEM)
    stage = stage_of(kepd, lab)
    claiming(stage, "modem")
    stage.wait(lambda: stage.lines("app"), "it runs")
    record = next((kepd.folder / "state" / "devices" / "claims").glob("*.json"))
    held = yaml.safe_load(record.read_text())
    stage.remove()
    stage.wait_gone()
    kepd.end()
    held["holders"][0]["uid"] = "another"
    record.write_text(json.dumps(held))
    kepd.start("--planes", PLANES).wait_ready()

    stage.wait(lambda: not modems.remains(kepd.folder / "state"), "it is given back")
    assert modems.ran("reset") == ["modem-0", "modem-0"]


def test_devices_of_a_pod_without_a_record_are_given_to_nobody(kepd: Kepd, lab: Lab, modems: Modems) -> None:
    """DVM-41, DVC-1, DVC-9."""
    add(kepd, "modem", MODEM)
    stage = stage_of(kepd, lab)
    claiming(stage, "modem")
    # A runtime ends a container whose start it has not answered yet when who asked goes away.
    stage.wait(lambda: (stage.pod() or {}).get("phase") == "Running", "kepd knows that it runs")
    kepd.end()
    for record in (kepd.folder / "state" / "devices" / "claims").glob("*.json"):
        record.unlink()
    kepd.start("--planes", PLANES)
    stage.wait(lambda: "adopted" in kepd.ctl("get", "claims").stdout, "it is known")
    other = stage_of(kepd, lab, "other")
    claiming(other, "modem")
    other.wait(lambda: "no record is left" in dict(events(other)).get("ClaimError", ""), "the other one waits")
    modems.own_cdi.mkdir()
    (modems.own_cdi / "short.json").write_text('{"cdiVersion": "0.6.0", "kind": "a/b", "devices": []}')
    doctor = kepd.ctl("doctor").stdout
    was_given = bool(other.lines("app"))
    stage.remove()
    stage.wait_gone()
    other.wait(lambda: other.lines("app"), "it has a device")

    assert not was_given
    assert all(text in doctor for text in ("no record is left", "short.json"))
    assert ("resolves no CDI ids" in doctor, "looks for CDI files in" in doctor) == (not has_cdi(lab), has_cdi(lab))
