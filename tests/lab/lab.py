# SPDX-License-Identifier: Apache-2.0
"""One lab: a namespace with a registry, a throttle in front of it, and a containerd that pulls from both.

Owns: the order of start and end, and the images in it. After `close` nothing of the lab is on the machine, whatever
happened to its parts before; a lab whose owner died is cleaned by the next one that starts.
Never: uses the machine's containerd, network or default directories.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import grpc

from tests.lab.containerd import Containerd, shim_sockets
from tests.lab.cri import Cri
from tests.lab.errors import LabError
from tests.lab.images import Image, OciImage, build, cache_directory
from tests.lab.netns import Netns
from tests.lab.outward import Outward
from tests.lab.packages import Programs, find_programs
from tests.lab.place import Place, claim, default_parent
from tests.lab.pods import Pod
from tests.lab.registry import Registry
from tests.lab.sweep import leftovers, sweep, sweep_dead
from tests.lab.throttle import Throttle

__all__ = ["Lab"]

REGISTRY_PORT = 5055
THROTTLE_PORT = 5056
OUTWARD_PORT = 5057
PAUSE = Image(name="lab/pause", command=("/bin/busybox", "tail", "-f", "/dev/null"))
PODS_END_WITHIN_S = 40.0
IMAGE_SHOWS_WITHIN_S, POLL_S = 10.0, 0.005


class Lab:
    """A running lab; `Lab.start()` makes one, `close()` or leaving the `with` block ends it."""

    def __init__(self, place: Place, owner: int, programs: Programs, *, is_connected: bool = False) -> None:
        self.place = place
        self.programs = programs
        self.netns = Netns(place.netns, programs)
        self.registry = Registry(place, self.netns, programs, REGISTRY_PORT)
        self.throttle = Throttle(place, self.netns, programs, port=THROTTLE_PORT, upstream_port=REGISTRY_PORT)
        self.outward = Outward(self.netns, OUTWARD_PORT) if is_connected else None
        way_out = self.outward.environment() if self.outward else {}
        self.containerd = Containerd(place, self.netns, programs, way_out)
        self._owner: int | None = owner
        self._shim_sockets: set[Path] = set()
        self._cache = Path()

    @classmethod
    def start(
        cls, *, parent: Path | None = None, max_concurrent_downloads: int = 3, is_connected: bool = False
    ) -> Self:
        """Clean up after dead labs, then start a new one below `parent` or the directory for temporary files.
        `is_connected`: its containerd reaches registries outside."""
        programs = find_programs()
        parent = (parent or default_parent()).resolve()
        sweep_dead(parent)
        lab = cls(*claim(parent), programs, is_connected=is_connected)
        try:
            lab._start(max_concurrent_downloads)
        except BaseException:
            lab.close()
            raise
        return lab

    def _start(self, max_concurrent_downloads: int) -> None:
        self._cache = cache_directory(self.place.directory / "images")
        self.place.pod_logs.mkdir()
        self.netns.create()
        if self.outward:
            self.outward.begin()
        pause = PAUSE.reference(self.registry.address)
        self.containerd.configure(pause, (self.registry.address, self.throttle.address), max_concurrent_downloads)
        self.registry.configure()
        for part in (self.containerd, self.registry, self.throttle):
            part.begin()
        self.build(PAUSE)  # while they start
        for part in (self.containerd, self.registry, self.throttle):
            part.wait_ready()
        self.preload(PAUSE)

    @property
    def endpoint(self) -> str:
        """The CRI endpoint as a URL, reachable from any network namespace."""
        return f"unix://{self.place.containerd_socket}"

    @property
    def cri(self) -> Cri:
        """A client of the lab's containerd; it works on after a restart."""
        return self.containerd.cri

    def build(self, image: Image) -> OciImage:
        return build(image, self.programs.paths["busybox"], self._cache)

    def push(self, image: Image) -> str:
        """Put an image into the registry; returns the reference to pull. `throttled` gives the slow way to it."""
        reference = image.reference(self.registry.address)
        self.registry.push(self.build(image), reference)
        return reference

    def throttled(self, image: Image) -> str:
        """The reference that pulls a pushed image through the throttle."""
        return image.reference(self.throttle.address)

    def preload(self, image: Image, reference: str | None = None) -> str:
        """Put an image straight into containerd, by default under the name a pull would give it."""
        reference = reference or image.reference(self.registry.address)
        archive = self.place.directory / f"import-{os.urandom(4).hex()}.tar"
        try:
            self.containerd.import_archive(self.build(image).archive(reference, archive))
        finally:
            archive.unlink(missing_ok=True)
        # CRI of 2.x hears of it by an event.
        until_s = time.monotonic() + IMAGE_SHOWS_WITHIN_S
        while not self.cri.has_image(reference):
            if time.monotonic() > until_s:
                raise LabError(f"{reference}: imported, and CRI shows no image after {IMAGE_SHOWS_WITHIN_S} s")
            time.sleep(POLL_S)
        return reference

    def run_pod(self, name: str, labels: Mapping[str, str] | None = None) -> Pod:
        """Start an empty pod; containers are added with `Pod.run`."""
        return Pod(self.place, self.cri, name, labels=labels)

    def describe(self) -> dict[str, str | int]:
        """All that another program needs to use the lab."""
        return {
            "name": self.place.name,
            "endpoint": self.endpoint,
            "registry": self.registry.address,
            "throttle": self.throttle.address,
            "throttleControl": str(self.place.throttle_socket),
            "directory": str(self.place.directory),
            "netns": str(self.place.netns),
            "cgroupParent": self.place.cgroup_parent,
            "podLogs": str(self.place.pod_logs),
            "containerdConfig": str(self.place.containerd_config),
            "containerdLog": str(self.place.log("containerd")),
            "containerdVersion": ".".join(map(str, self.programs.containerd_version)),
            "containerdPid": self.containerd.pid,
            "bridge": self.place.bridge,
            "subnet": self.place.subnet,
        }

    def leftovers(self) -> list[str]:
        """What of this lab is on the machine now, a line each; empty after `close`."""
        return leftovers(self.place, self._shim_sockets | shim_sockets(self.place))

    def close(self) -> None:
        """End pods, processes, mounts, cgroups, files; calling it again does nothing."""
        if self._owner is None:
            return
        if self.containerd.is_running:
            # a runtime that hangs or was broken by a test is dealt with below, without its help
            with suppress(grpc.RpcError):
                self.cri.remove_all_pods(PODS_END_WITHIN_S)
        self.containerd.close()
        self.registry.stop()
        self.throttle.stop()
        if self.outward:
            self.outward.stop()
        self._shim_sockets |= sweep(self.place)
        os.close(self._owner)
        self._owner = None
        if left := self.leftovers():
            raise LabError(f"{self.place.name}: still there after cleaning: {'; '.join(left)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
