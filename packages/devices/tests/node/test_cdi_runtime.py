# SPDX-License-Identifier: Apache-2.0
"""What real runtimes make of CDI ids, where kepd relies on it. DVC-1, DVC-2, DVC-9.

The lab's own containerd, or with KEPD_LAB_BIN a newer one: it resolves ids from 2.0 on.
"""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from agent.drivers.cri.driver import told_cdi_directories, told_to_resolve_cdi
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.lab import Image, Lab

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]
STAY = "trap 'exit 0' TERM; sleep 3600 & wait"


class Sandbox:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.image = lab.push(Image(name="node/cdi"))
        lab.cri.pull(self.image)
        self.config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name="cdi", uid="cdi", namespace="default"),
            log_directory=str(lab.place.pod_logs / "cdi"),
            linux=pb.LinuxPodSandboxConfig(cgroup_parent=f"{lab.place.cgroup_parent}/cdi"),
        )
        lab.place.pod_logs.joinpath("cdi").mkdir(parents=True, exist_ok=True)
        self.id = lab.cri.call("RunPodSandbox", pb.RunPodSandboxRequest(config=self.config)).pod_sandbox_id
        lab.place.cdi.mkdir(exist_ok=True)
        self.count = 0

    def write(self, name: str, edits: dict[str, Any], kind: str = "example.com/gpu") -> None:
        spec = {"cdiVersion": "0.6.0", "kind": kind, "devices": [{"name": "0", "containerEdits": edits}]}
        (self.lab.place.cdi / name).write_text(json.dumps(spec))

    def make(self, *ids: str, env: dict[str, str] | None = None) -> str:
        """A container that asks for devices by ids."""
        self.count += 1
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=f"main-{self.count}"),
            image=pb.ImageSpec(image=self.image),
            command=["sh", "-c", STAY],
            envs=[pb.KeyValue(key=name, value=value.encode()) for name, value in (env or {}).items()],
            CDI_devices=[pb.CDIDevice(name=one) for one in ids],
            linux=pb.LinuxContainerConfig(),
        )
        request = pb.CreateContainerRequest(pod_sandbox_id=self.id, config=config, sandbox_config=self.config)
        made = self.lab.cri.call("CreateContainer", request).container_id
        self.lab.cri.call("StartContainer", pb.StartContainerRequest(container_id=made))
        return str(made)

    def seen(self, container: str) -> list[str]:
        request = pb.ExecSyncRequest(container_id=container, cmd=["env"], timeout=10)
        return sorted(self.lab.cri.call("ExecSync", request).stdout.decode().splitlines())

    def refusal(self, *ids: str) -> str:
        with pytest.raises(grpc.RpcError) as told:
            self.make(*ids)
        return str(told.value.details())

    def told_ids(self, container: str) -> list[str]:
        request = pb.ContainerStatusRequest(container_id=container, verbose=True)
        config = json.loads(self.lab.cri.call("ContainerStatus", request).info["info"]).get("config", {})
        return [one["name"] for one in config.get("CDI_devices", [])]

    def close(self) -> None:
        self.lab.cri.call("StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=self.id))
        self.lab.cri.call("RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=self.id))
        for path in self.lab.place.cdi.iterdir():
            path.unlink()


@pytest.fixture
def sandbox(lab: Lab) -> Iterator[Sandbox]:
    made = Sandbox(lab)
    yield made
    made.close()


def is_modern(lab: Lab) -> bool:
    return lab.containerd.version >= (2, 0)


def test_a_runtime_tells_whether_and_where_it_resolves_ids(lab: Lab) -> None:
    """DVC-1, DVC-2."""
    config = lab.cri.call("Status", pb.StatusRequest(verbose=True)).info["config"]

    assert told_to_resolve_cdi(config) is is_modern(lab)
    assert told_cdi_directories(config) == ((str(lab.place.cdi),) if is_modern(lab) else ())


def test_a_file_that_was_just_written_is_seen_once_and_replaces_a_variable(lab: Lab, sandbox: Sandbox) -> None:
    """DVC-2, DVC-5: an id given twice counts once. An old runtime starts the container without the device."""
    sandbox.write("gpu.json", {"env": ["GPU=0", "WORD=cdi"]})
    made = sandbox.make("example.com/gpu=0", "example.com/gpu=0", env={"WORD": "pod"})
    words = [one for one in sandbox.seen(made) if one.startswith(("GPU=", "WORD="))]

    assert words == (["GPU=0", "WORD=cdi"] if is_modern(lab) else ["WORD=pod"])
    assert sandbox.told_ids(made) == (["example.com/gpu=0"] * 2 if is_modern(lab) else [])


def test_what_does_not_resolve_makes_no_container_on_a_runtime_that_resolves(lab: Lab, sandbox: Sandbox) -> None:
    """DVC-2: an unknown id, one that is none, one that two files have, and a node that is not there."""
    sandbox.write("a.json", {"env": ["A=1"]})
    sandbox.write("b.json", {"env": ["B=1"]})
    sandbox.write("node.json", {"deviceNodes": [{"path": "/dev/kepd-none"}]}, kind="example.com/nic")
    if not is_modern(lab):
        made = sandbox.make("example.com/gpu=7", "nonsense", "example.com/gpu=0", "example.com/nic=0")
        assert not any(one.startswith(("A=", "B=")) for one in sandbox.seen(made))
        return

    for one in ("example.com/gpu=7", "nonsense", "example.com/gpu=0"):
        assert "unresolvable CDI devices" in sandbox.refusal(one)
    assert "failed to stat CDI host device" in sandbox.refusal("example.com/nic=0")


def test_a_kind_of_one_sign_ends_some_runtimes_and_never_gets_there(lab: Lab, sandbox: Sandbox) -> None:
    """DVC-9: this is why kepd writes and passes on none. Builds with a newer library of CDI take it as any other."""
    if not is_modern(lab):
        return
    sandbox.write("short.json", {"env": ["A=1"]}, kind="a/b")
    try:
        made = sandbox.make("a/b=0")
    except grpc.RpcError as error:
        (lab.place.cdi / "short.json").unlink()
        lab.containerd.restart()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    else:
        assert "A=1" in sandbox.seen(made)
