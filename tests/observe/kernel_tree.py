# SPDX-License-Identifier: Apache-2.0
"""A tree of files that looks like the kernel's, with its refusals; and a runtime that lists what is in it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.drivers.kernel_files.driver import GONE, OFF, KernelFiles
from agent.model.runtime.error import NotFound, RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.observe.test_kernel_texts import LEGACY, UNIFIED

LEGACY_PLACES = {
    "unified": ("cpu.pressure", "memory.pressure", "io.pressure"),
    "cpuacct": ("cpuacct.",), "cpu": ("cpu.stat", "cpu.cfs", "cpu.shares"), "memory": ("memory.",),
    "blkio": ("blkio.",), "pids": ("pids.", "cgroup.procs"),
}  # fmt: skip
MOUNTS = {
    1: "".join(
        f"3{number} 1 0:{number} / /sys/fs/cgroup/{one} rw - cgroup cgroup rw,{one}\n"
        for number, one in enumerate(("cpuacct", "cpu", "memory", "blkio", "pids"))
    )
    + "41 1 0:9 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    2: "41 1 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
NET = b"a\nb\n eth0: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n"


class FakeKernelFiles(KernelFiles):
    """The driver on a tree of its own. `refusals` are error numbers by the last part of a path."""

    def __init__(self, root: Path, most_open: int = 8192) -> None:
        super().__init__(root, most_open)
        self.refusals: dict[str, int] = {}
        self.asked = 0

    def read_all(self, paths: Sequence[str]) -> tuple[list[bytes | None], list[OSError]]:
        self.asked += len(paths)
        texts, faults = super().read_all(paths)
        for place, path in enumerate(paths):
            number = self.refusals.get(path.rpartition("/")[2])
            if number is not None:
                texts[place] = None
                if number not in GONE and number != OFF:
                    faults.append(OSError(number, "refused", path))
        return texts, faults


class KernelTree:
    def __init__(self, root: Path, version: int = 1) -> None:
        self.root, self.version = root, version
        self.write("proc/self/mountinfo", MOUNTS[version].encode())
        self.write("proc/meminfo", b"MemTotal: 1000 kB\nMemFree: 500 kB\nMemAvailable: 600 kB\n")
        self.write("proc/stat", b"cpu  1\ncpu0 1\ncpu1 1\n")
        self.write("proc/vmstat", b"oom_kill 3\n")
        self.write("proc/1/net/dev", NET)
        self.group("")

    def write(self, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)

    def group(self, group: str, **texts: bytes) -> None:
        """One group in all hierarchies. Names of files have `_` for a dot."""
        calm = {"memory.oom_control": b"oom_kill 0\n"} if self.version == 1 else {"memory.events": b"oom_kill 0\n"}
        more = {**calm, **{name.replace("_", ".", 1): text for name, text in texts.items()}}
        if self.version == 2:
            for name, text in {**UNIFIED, "cpu.pressure": LEGACY["cpu.pressure"], **more}.items():
                self.write(f"sys/fs/cgroup{group}/{name}", text)
            return
        for name, text in {**LEGACY, **more}.items():
            place = next(one for one, heads in LEGACY_PLACES.items() if name.startswith(heads))
            self.write(f"sys/fs/cgroup/{place}{group}/{name}", text)

    def process(self, pid: int, group: str) -> None:
        names = ("cpuacct", "cpu", "memory", "blkio", "pids")
        lines = [f"{number}:{one}:{group}\n" for number, one in enumerate(names, 1)] if self.version == 1 else []
        self.write(f"proc/{pid}/cgroup", "".join([*lines, f"0::{group}\n"]).encode())
        self.write(f"proc/{pid}/net/dev", NET)


class ListedInstances:
    """The part of a runtime that observation asks. Pods have one container unless told otherwise."""

    def __init__(self, tree: KernelTree) -> None:
        self.tree = tree
        self.sandboxes: dict[str, pb.PodSandbox] = {}
        self.containers: dict[str, pb.Container] = {}
        self.pids: dict[str, int] = {}
        self.calls: list[str] = []
        self.is_away = False
        self.on_host_network: set[str] = set()

    def add_pod(self, name: str, containers: Sequence[str] = ("main",), *, is_ours: bool = True) -> None:
        sandbox_id, pid = f"s-{name}", 100 + len(self.sandboxes)
        labels = {f"io.kubernetes.pod.{key}": value for key, value in _names(name).items()}
        self.sandboxes[sandbox_id] = pb.PodSandbox(
            id=sandbox_id, labels=labels, annotations={"kepd.dev/instance": "i"} if is_ours else {},
            state=pb.SANDBOX_READY,
        )  # fmt: skip
        self.pids[sandbox_id] = pid
        self.tree.group(f"/kepd/pod-{name}")
        self.tree.group(f"/kepd/pod-{name}/{sandbox_id}")
        self.tree.process(pid, f"/kepd/pod-{name}/{sandbox_id}")
        for one in containers:
            self.add_container(name, one)

    def add_container(self, pod: str, name: str, attempt: int = 0) -> str:
        instance = f"c-{pod}-{name}-{attempt}"
        self.containers[instance] = pb.Container(
            id=instance, pod_sandbox_id=f"s-{pod}", labels={"io.kubernetes.container.name": name},
            state=pb.CONTAINER_RUNNING,
        )  # fmt: skip
        self.tree.group(f"/kepd/pod-{pod}/{instance}")
        return instance

    def end(self, instance: str) -> None:
        self.containers[instance].state = pb.CONTAINER_EXITED

    def _asked(self, name: str) -> None:
        self.calls.append(name)
        if self.is_away:
            raise RuntimeCallFailed(name, "the runtime is away")

    async def list_sandboxes(self) -> list[pb.PodSandbox]:
        self._asked("ListPodSandbox")
        return list(self.sandboxes.values())

    async def list_containers(self, sandbox_id: str = "") -> list[pb.Container]:
        self._asked("ListContainers")
        return list(self.containers.values())

    async def container_status(self, container_id: str) -> pb.ContainerStatus:
        self._asked("ContainerStatus")
        if container_id not in self.containers:
            raise NotFound("ContainerStatus", container_id)
        return pb.ContainerStatus(started_at=5 * 10**9, image=pb.ImageSpec(image="busybox:1"))

    async def sandbox_details(self, sandbox_id: str) -> pb.PodSandboxStatusResponse:
        self._asked("PodSandboxStatus")
        answer = pb.PodSandboxStatusResponse(info={"info": json.dumps({"pid": self.pids[sandbox_id], "config": {}})})
        if sandbox_id in self.on_host_network:
            answer.status.linux.namespaces.options.network = pb.NODE
        return answer

    async def container_details(self, container_id: str) -> pb.ContainerStatusResponse:
        self._asked("ContainerStatus")
        return pb.ContainerStatusResponse(info={"info": json.dumps({"pid": self.pids.get(container_id, 0)})})

    async def writable_layers(self) -> Mapping[str, tuple[int, int]]:
        self._asked("ListContainerStats")
        return dict.fromkeys(self.containers, (4096, 2))

    async def image_filesystem(self) -> str:
        return "/images"


def _names(pod: str) -> dict[str, str]:
    return {"name": pod, "namespace": "default", "uid": f"uid-{pod}"}
