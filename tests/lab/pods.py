# SPDX-License-Identifier: Apache-2.0
"""A pod and its containers, driven over CRI with as few settings as containerd needs.

Owns: sandbox and container configurations below the lab's cgroup, log paths, and reading what a container wrote.
Never: decides order or restarts; that is what kepd is for, and tests of kepd use its own drivers.
"""

import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.wire.cri import runtime_v1_pb2 as cri_pb
from tests.lab.cri import Cri
from tests.lab.errors import LabError
from tests.lab.place import Place

__all__ = ["Container", "ExecResult", "Pod"]

POLL_S = 0.01
DIRECTORY_MODE = 0o755


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in a container returned."""

    exit_code: int
    stdout: str
    stderr: str


class Pod:
    """A running sandbox."""

    def __init__(self, place: Place, cri: Cri, name: str, *, labels: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.uid = str(uuid.uuid4())
        self.log_directory = place.pod_logs / self.uid
        self.log_directory.mkdir(mode=DIRECTORY_MODE, parents=True)
        self.cri = cri
        self.config = cri_pb.PodSandboxConfig(
            metadata=cri_pb.PodSandboxMetadata(name=name, uid=self.uid, namespace="default"),
            hostname=name,
            labels=dict(labels or {}),
            log_directory=str(self.log_directory),
            linux=cri_pb.LinuxPodSandboxConfig(
                cgroup_parent=f"{place.cgroup_parent}/{self.uid}",
                security_context=cri_pb.LinuxSandboxSecurityContext(namespace_options=_namespaces()),
            ),
        )
        self.id: str = cri.call("RunPodSandbox", cri_pb.RunPodSandboxRequest(config=self.config)).pod_sandbox_id

    @property
    def ip(self) -> str:
        """The address inside the lab's network namespace."""
        request = cri_pb.PodSandboxStatusRequest(pod_sandbox_id=self.id)
        return str(self.cri.call("PodSandboxStatus", request).status.network.ip)

    def create(
        self,
        name: str,
        image: str,
        command: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        mounts: Sequence[cri_pb.Mount] = (),
    ) -> "Container":
        """Create a container without starting it; an empty command means the image's own."""
        config = cri_pb.ContainerConfig(
            metadata=cri_pb.ContainerMetadata(name=name),
            image=cri_pb.ImageSpec(image=image),
            command=command,
            envs=[cri_pb.KeyValue(key=key, value=value.encode()) for key, value in (environment or {}).items()],
            mounts=mounts,
            log_path=f"{name}.log",
            linux=cri_pb.LinuxContainerConfig(
                security_context=cri_pb.LinuxContainerSecurityContext(namespace_options=_namespaces())
            ),
        )
        request = cri_pb.CreateContainerRequest(pod_sandbox_id=self.id, config=config, sandbox_config=self.config)
        container_id = self.cri.call("CreateContainer", request).container_id
        return Container(self.cri, container_id, self.log_directory / f"{name}.log")

    def run(self, name: str, image: str, command: Sequence[str] = ()) -> "Container":
        """Create a container and start it."""
        container = self.create(name, image, command)
        container.start()
        return container

    def stop(self) -> None:
        self.cri.call("StopPodSandbox", cri_pb.StopPodSandboxRequest(pod_sandbox_id=self.id))

    def remove(self) -> None:
        """Remove sandbox, containers and logs; the pod is stopped first if it runs."""
        self.stop()
        self.cri.call("RemovePodSandbox", cri_pb.RemovePodSandboxRequest(pod_sandbox_id=self.id))
        shutil.rmtree(self.log_directory)


class Container:
    """A container of a pod."""

    def __init__(self, cri: Cri, container_id: str, log_file: Path) -> None:
        self.cri = cri
        self.id = container_id
        self.log_file = log_file

    def start(self) -> None:
        self.cri.call("StartContainer", cri_pb.StartContainerRequest(container_id=self.id))

    def status(self) -> cri_pb.ContainerStatus:
        request = cri_pb.ContainerStatusRequest(container_id=self.id)
        status: cri_pb.ContainerStatus = self.cri.call("ContainerStatus", request).status
        return status

    def exec(self, argv: Sequence[str], within_s: int = 10) -> ExecResult:
        """Run a command inside; a status other than 0 is a result, not an error."""
        request = cri_pb.ExecSyncRequest(container_id=self.id, cmd=argv, timeout=within_s)
        reply = self.cri.call("ExecSync", request, within_s + 5)
        return ExecResult(reply.exit_code, reply.stdout.decode(), reply.stderr.decode())

    def stop(self, grace_s: int = 5) -> None:
        request = cri_pb.StopContainerRequest(container_id=self.id, timeout=grace_s)
        self.cri.call("StopContainer", request, grace_s + 30)

    def remove(self) -> None:
        self.cri.call("RemoveContainer", cri_pb.RemoveContainerRequest(container_id=self.id))

    def log(self) -> str:
        """What it wrote so far, without the runtime's time stamps; both streams in order."""
        if not self.log_file.exists():
            return ""
        lines = [line.split(" ", 3) for line in self.log_file.read_text("utf-8", "replace").splitlines()]
        return "".join(line[3] + ("" if line[2] == "P" else "\n") for line in lines if len(line) == 4)

    def wait_log(self, text: str, within_s: float = 30.0) -> str:
        """Return the log once it contains `text`."""
        deadline_monotonic = time.monotonic() + within_s
        while text not in (log := self.log()):
            if time.monotonic() > deadline_monotonic:
                raise LabError(f"{self.log_file}: no {text!r} within {within_s} s; it holds {log!r}")
            time.sleep(POLL_S)
        return log

    def wait_exited(self, within_s: float = 30.0) -> int:
        """Return the exit code once the container has ended."""
        deadline_monotonic = time.monotonic() + within_s
        while (status := self.status()).state != cri_pb.CONTAINER_EXITED:
            if time.monotonic() > deadline_monotonic:
                state = cri_pb.ContainerState.Name(status.state)
                raise LabError(f"container {self.id[:12]}: {state} after {within_s} s, expected CONTAINER_EXITED")
            time.sleep(POLL_S)
        return int(status.exit_code)


def _namespaces() -> cri_pb.NamespaceOption:
    return cri_pb.NamespaceOption(network=cri_pb.POD, pid=cri_pb.CONTAINER, ipc=cri_pb.POD)
