# SPDX-License-Identifier: Apache-2.0
"""A private containerd: its files, start, readiness, stop, crash and restart.

Owns: one containerd process with root, state, socket, CNI network and runc state of its own; containers outlive it
(LAB-25), which is why ending them is the sweep's job.
Never: touches the machine's own containerd or its namespaces.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from agent.wire.cri import runtime_v1_pb2 as cri_pb
from tests.lab.child import Child
from tests.lab.containerd_config import (
    ContainerdSettings,
    render_conflist,
    render_containerd_config,
    write_registry_hosts,
)
from tests.lab.cri import Cri
from tests.lab.mounts import file_system_of
from tests.lab.netns import Netns
from tests.lab.packages import Programs
from tests.lab.place import Place

__all__ = ["Containerd", "is_lowering_oom_score_refused"]

READY_WITHIN_S = 40.0
SANDBOX_OOM_SCORE = -998
CRI_NAMESPACE = "k8s.io"


def is_lowering_oom_score_refused() -> bool:
    """Try in a child what runc does for a sandbox; without CAP_SYS_RESOURCE runc would end without a cause (LAB-7)."""
    attempt = ["/bin/sh", "-c", f"echo {SANDBOX_OOM_SCORE} > /proc/self/oom_score_adj"]
    done = subprocess.run(attempt, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    return done.returncode != 0


class Containerd:
    """The runtime of one lab."""

    def __init__(self, place: Place, netns: Netns, programs: Programs, environment: Mapping[str, str]) -> None:
        """`environment` is added to that of the lab's programs."""
        self.place = place
        self.version = programs.containerd_version
        self._programs = programs
        self._netns = netns
        self.snapshotter = "overlayfs"
        self.cri = Cri(place.containerd_socket)
        self.process = Child(
            "containerd",
            netns.command([programs["containerd"], "-c", str(place.containerd_config)]),
            log=place.log("containerd"),
            environment=programs.environment() | environment,
        )

    def configure(self, pause_image: str, registries: Sequence[str], max_concurrent_downloads: int = 3) -> None:
        """Write everything containerd reads; takes effect at the next start."""
        # an overlay on an overlay is refused, as found where the lab itself runs in a container
        self.snapshotter = "native" if file_system_of(self.place.directory) == "overlay" else "overlayfs"
        settings = ContainerdSettings(
            version=self.version,
            pause_image=pause_image,
            runc=Path(self._programs["runc"]),
            cni_directory=self._programs.cni_directory,
            snapshotter=self.snapshotter,
            restrict_oom_score_adj=is_lowering_oom_score_refused(),
            max_concurrent_downloads=max_concurrent_downloads,
        )
        self._write(self.place.containerd_config, render_containerd_config(self.place, settings))
        self._write(self.place.directory / "cni" / "10-lab.conflist", render_conflist(self.place))
        write_registry_hosts(self.place, registries)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def begin(self) -> None:
        """Start without waiting, so that other parts can start meanwhile."""
        self.process.start()

    def wait_ready(self) -> None:
        """Return when the CRI service answers and says that runtime and network are ready (LAB-11)."""
        self.process.wait_ready(self._problem, READY_WITHIN_S)

    def start(self) -> None:
        self.begin()
        self.wait_ready()

    def stop(self) -> None:
        """SIGTERM and wait; containers go on running."""
        self.process.stop()

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self.cri.close()

    def kill(self) -> None:
        """SIGKILL; containers and shims go on running."""
        self.process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def is_running(self) -> bool:
        return self.process.is_running

    @property
    def pid(self) -> int:
        return self.process.pid

    def _problem(self) -> str:
        if not self.place.containerd_socket.exists():
            return f"no socket {self.place.containerd_socket}"
        self.cri.reconnect()
        try:
            self.cri.call("Version", cri_pb.VersionRequest(), within_s=2)
            status: cri_pb.StatusResponse = self.cri.call("Status", cri_pb.StatusRequest(), within_s=2)
        except grpc.RpcError as error:
            return f"CRI answers {error.code().name}: {error.details()}"
        conditions = {condition.type: condition for condition in status.status.conditions}
        for name in ("RuntimeReady", "NetworkReady"):
            if name not in conditions or not conditions[name].status:
                return f"{name} is false: {conditions[name].message if name in conditions else 'not reported'}"
        return ""

    def ctr(self, *arguments: str) -> str:
        """Run ctr against this containerd, in the namespace that CRI uses."""
        return self._netns.run(
            [self._programs["ctr"], "-a", str(self.place.containerd_socket), "-n", CRI_NAMESPACE, *arguments]
        )

    def import_archive(self, archive: Path) -> None:
        """Take the images of a tar archive as `OciImage.archive` writes it; no registry is involved (LAB-16)."""
        self.ctr("images", "import", "--snapshotter", self.snapshotter, str(archive))

    def shim_sockets(self) -> set[Path]:
        """Sockets in the directory shared by all containerds that belong to this one's shims."""
        return shim_sockets(self.place)


def shim_sockets(place: Place) -> set[Path]:
    """What the task directories say: `address` up to 1.7, `bootstrap.json` in 2.x."""
    found = set()
    for bundle in place.containerd_state.glob("io.containerd.runtime.v2.task/*/*"):
        for name in ("address", "bootstrap.json"):
            file = bundle / name
            if not file.is_file():
                continue
            text = file.read_text("utf-8")
            address = text if name == "address" else json.loads(text).get("address", "")
            found.add(Path(address.strip().removeprefix("unix://")))
    return found
