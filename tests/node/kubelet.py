# SPDX-License-Identifier: Apache-2.0
"""A kubelet as far as its runtime sees one: the calls of a sync, in its order, with its metadata and deadlines.

Speaks bytes, so that answers can be compared as they came. Every call is written down with its time.
"""

import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.lab import Lab

RUNTIME = "/runtime.v1.RuntimeService/"
IMAGE = "/runtime.v1.ImageService/"
IMAGE_METHODS = {"ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"}
REQUEST_S = 120.0
OPTIONS = [
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
]


@dataclass
class Said:
    """One call as the kubelet remembers it."""

    method: str
    name: str
    began_s: float
    ended_s: float = 0.0
    code: str = ""
    text: str = ""


@dataclass
class PodPlan:
    """What the kubelet was told to run. `hooks` are preStop commands by container."""

    name: str
    containers: Sequence[tuple[str, Sequence[str]]]
    annotations: Mapping[str, str] = field(default_factory=dict)
    grace_s: int = 8
    hooks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    image: str = ""
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))


class Kubelet:
    """An older one: it knows no sidecars, stops all containers at once, and never gives a call up for a deletion."""

    def __init__(self, lab: Lab, socket: Path) -> None:
        self.lab = lab
        self.socket = socket
        self.said: list[Said] = []
        self.began_s = time.monotonic()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(32)
        self.channel = grpc.insecure_channel(f"unix://{socket}", options=OPTIONS)
        self.sandboxes: dict[str, str] = {}
        self.ids: dict[tuple[str, str], str] = {}
        self.attempts: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.channel.close()

    def call(self, method: str, request: Any, deadline_s: float | None = REQUEST_S, name: str = "") -> Any:
        service = IMAGE if method in IMAGE_METHODS else RUNTIME
        invoke = self.channel.unary_unary(
            service + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(pb, f"{method}Response").FromString,
        )
        said = Said(method, name, time.monotonic() - self.began_s)
        with self._lock:
            self.said.append(said)
        try:
            answer = invoke(request, timeout=deadline_s)
            said.code = "OK"
            return answer
        except grpc.RpcError as error:
            said.code, said.text = error.code().name, error.details()
            raise
        finally:
            said.ended_s = time.monotonic() - self.began_s

    def later(self, method: str, request: Any, deadline_s: float | None = REQUEST_S, name: str = "") -> "Future[Any]":
        return self._pool.submit(self.call, method, request, deadline_s, name)

    # a sync, step by step

    def config(self, plan: PodPlan) -> pb.PodSandboxConfig:
        folder = self.lab.place.pod_logs / plan.uid
        folder.mkdir(parents=True, exist_ok=True)
        namespaces = pb.NamespaceOption(network=pb.POD, pid=pb.CONTAINER, ipc=pb.POD)
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=plan.name, uid=plan.uid, namespace="default"),
            hostname=plan.name,
            annotations=dict(plan.annotations),
            labels={"io.kubernetes.pod.uid": plan.uid},
            log_directory=str(folder),
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=f"{self.lab.place.cgroup_parent}/{plan.uid}",
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=namespaces),
            ),
        )

    def run_sandbox(self, plan: PodPlan) -> str:
        answer = self.call("RunPodSandbox", pb.RunPodSandboxRequest(config=self.config(plan)), 2 * REQUEST_S)
        self.sandboxes[plan.uid] = answer.pod_sandbox_id
        return answer.pod_sandbox_id

    def create(self, plan: PodPlan, name: str) -> str:
        """CreateContainer; the attempt counts up only when the runtime has made one before."""
        command = dict(plan.containers)[name]
        attempt = self.attempts.get((plan.uid, name), 0)
        annotations = {
            "io.kubernetes.container.restartCount": str(attempt),
            "io.kubernetes.pod.terminationGracePeriod": str(plan.grace_s),
        }
        if name in plan.hooks:
            annotations["io.kubernetes.container.preStopHandler"] = json.dumps(
                {"exec": {"command": list(plan.hooks[name])}}
            )
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=plan.image),
            command=command,
            annotations=annotations,
            log_path=f"{name}-{attempt}.log",
            linux=pb.LinuxContainerConfig(
                security_context=pb.LinuxContainerSecurityContext(
                    namespace_options=pb.NamespaceOption(network=pb.POD, pid=pb.CONTAINER, ipc=pb.POD)
                )
            ),
        )
        request = pb.CreateContainerRequest(
            pod_sandbox_id=self.sandboxes[plan.uid], config=config, sandbox_config=self.config(plan)
        )
        container_id = self.call("CreateContainer", request, name=name).container_id
        self.ids[plan.uid, name] = container_id
        self.attempts[plan.uid, name] = attempt + 1
        return container_id

    def start(self, plan: PodPlan, name: str) -> None:
        self.call("StartContainer", pb.StartContainerRequest(container_id=self.ids[plan.uid, name]), name=name)

    def sync(self, plan: PodPlan) -> list[str]:
        """One pass over the pod in the order of its spec; a container that cannot be made is told, the rest go on."""
        if plan.uid not in self.sandboxes:
            sandbox_id = self.run_sandbox(plan)
            self.call("PodSandboxStatus", pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id))
        failed = []
        for name, _ in plan.containers:
            if self.state(plan, name) == pb.CONTAINER_RUNNING:
                continue
            self.call("ImageStatus", pb.ImageStatusRequest(image=pb.ImageSpec(image=plan.image)))
            try:
                self.create(plan, name)
                self.start(plan, name)
            except grpc.RpcError as error:
                failed.append(f"{name}: {error.details()}")
        return failed

    def adopt(self, plan: PodPlan) -> dict[str, int]:
        """What the runtime has of a pod, whoever was told of it: states by container, the latest of each."""
        selector = {"io.kubernetes.pod.uid": plan.uid}
        request = pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=selector))
        states: dict[str, int] = {}
        for sandbox in self.call("ListPodSandbox", request).items:
            self.sandboxes[plan.uid] = sandbox.id
            inside = pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=sandbox.id))
            for one in sorted(self.call("ListContainers", inside).containers, key=lambda one: one.metadata.attempt):
                self.ids[plan.uid, one.metadata.name] = one.id
                self.attempts[plan.uid, one.metadata.name] = one.metadata.attempt + 1
                states[one.metadata.name] = one.state
        return states

    def status(self, plan: PodPlan, name: str) -> pb.ContainerStatus:
        request = pb.ContainerStatusRequest(container_id=self.ids[plan.uid, name])
        return self.call("ContainerStatus", request, name=name).status

    def state(self, plan: PodPlan, name: str) -> int | None:
        return self.status(plan, name).state if (plan.uid, name) in self.ids else None

    def stop(self, plan: PodPlan, name: str, timeout_s: int) -> "Future[Any]":
        request = pb.StopContainerRequest(container_id=self.ids[plan.uid, name], timeout=timeout_s)
        return self.later("StopContainer", request, timeout_s + REQUEST_S, name)

    def kill_pod(self, plan: PodPlan) -> None:
        """All containers at once, each after its hook; then the sandbox."""

        def kill(name: str) -> None:
            left_s = plan.grace_s
            if name in plan.hooks:
                began_s = time.monotonic()
                request = pb.ExecSyncRequest(container_id=self.ids[plan.uid, name], cmd=plan.hooks[name])
                self.call("ExecSync", request, None, name)
                left_s = max(2, left_s - round(time.monotonic() - began_s))
            self.stop(plan, name, left_s).result()

        running = [name for name, _ in plan.containers if self.state(plan, name) == pb.CONTAINER_RUNNING]
        for done in [self._pool.submit(kill, name) for name in running]:
            done.result()
        self.stop_sandbox(plan)

    def stop_sandbox(self, plan: PodPlan) -> None:
        self.call("StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=self.sandboxes[plan.uid]))

    def remove(self, plan: PodPlan) -> None:
        """What garbage collection does."""
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=self.sandboxes[plan.uid]))
        self.stop_sandbox(plan)
        for one in self.call("ListContainers", request).containers:
            self._remove_container(one.id)
        self.call("RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=self.sandboxes.pop(plan.uid)))

    def _remove_container(self, container: str) -> None:
        """Again and again, as garbage collection does: a start that was cut off is still on its way in containerd."""
        until_s = time.monotonic() + REQUEST_S
        while True:
            try:
                self.call("RemoveContainer", pb.RemoveContainerRequest(container_id=container))
                return
            except grpc.RpcError as error:
                if "starting state" not in (error.details() or "") or time.monotonic() > until_s:
                    raise
            time.sleep(0.5)

    def spoken(self, *methods: str) -> list[Said]:
        """What was said, by method."""
        return [one for one in self.said if one.method in methods]

    def last(self, method: str, name: str) -> Said:
        return [one for one in self.said if (one.method, one.name) == (method, name)][-1]
