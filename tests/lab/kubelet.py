# SPDX-License-Identifier: Apache-2.0
"""A kubelet program without an API server, on a lab: what it understands, its configuration, its end.

Old ones know fewer fields and get the runtime by flags. A kubelet changes settings of the whole machine, makes control
groups and mounts, and links logs into directories of the machine; all is put back.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab

KEYS = ("root_maxbytes", "root_maxkeys")
NAMES = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", *(f"kernel/keys/{key}" for key in KEYS))
SYSCTLS = [Path("/proc/sys") / name for name in NAMES]
LINKS, LOGS = Path("/var/log/containers"), Path("/var/log/pods")
DEVICES = Path("/var/lib/kubelet/device-plugins")  # whatever --root-dir says
# From here on the runtime is a field of the configuration, and the flag `--container-runtime` is gone.
WITH_FIELDS = (1, 27)
OLD, UNMARKED = (1, 20), (1, 29)


@dataclass(frozen=True)
class Program:
    """A kubelet as it says of itself. A build without a version shows its age by its flags."""

    path: str
    version: tuple[int, int]

    @classmethod
    def ask(cls, path: str) -> "Program":
        words = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"v(\d+)\.(\d+)", words)
        if found and int(found[1]):
            return cls(path, (int(found[1]), int(found[2])))
        flags = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
        return cls(path, OLD if "--container-runtime string" in flags else UNMARKED)

    @property
    def label(self) -> str:
        return ".".join(map(str, self.version))

    def settings(self, lab: Lab, folder: Path, endpoint: str, **fields: Any) -> dict[str, Any]:
        """Of `--config`; pods come from the directory `manifests`."""
        found: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(folder / "manifests"),
            "fileCheckFrequency": "1s",
            "cgroupDriver": "cgroupfs",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "healthzPort": 0,
            "maxPods": 500,
            "volumePluginDir": str(folder / "plugins"),
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
        }
        if self.version >= WITH_FIELDS:
            found |= {
                "containerRuntimeEndpoint": endpoint,
                "failCgroupV1": False,
                "localStorageCapacityIsolation": False,
                "podLogsDir": str(lab.place.pod_logs),
                "registerNode": False,
            }
        else:
            found |= {"featureGates": {"LocalStorageCapacityIsolation": False}, "volumePluginDir": ""}
        return found | fields

    def command(self, lab: Lab, folder: Path, endpoint: str) -> list[str]:
        """For a configuration in `kubelet.json`."""
        flags = {"config": folder / "kubelet.json", "root-dir": folder / "root", "cert-dir": folder / "certs"}
        argv = [self.path, *(f"--{name}={value}" for name, value in flags.items()), "--hostname-override=n1"]
        if self.version < WITH_FIELDS:
            argv += ["--container-runtime=remote", f"--container-runtime-endpoint={endpoint}", "--register-node=false"]
            argv += [f"--volume-plugin-dir={folder / 'plugins'}"]
        return lab.netns.command([*argv, "--node-ip=127.0.0.1"])


@contextmanager
def kubelet(
    program: Program, lab: Lab, folder: Path, settings: Mapping[str, Any], *flags: str
) -> Iterator[subprocess.Popen[bytes]]:
    """One that runs, with its log in `kubelet.log`."""
    (folder / "manifests").mkdir(exist_ok=True)
    (folder / "kubelet.json").write_text(json.dumps(settings))
    with ExitStack() as stack:
        stack.enter_context(machine_as_before(lab, folder))
        log = stack.enter_context((folder / "kubelet.log").open("ab"))
        process = subprocess.Popen([*program.command(lab, folder, lab.endpoint), *flags], stdout=log, stderr=log)
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        yield process
        assert process.poll() is None, f"the kubelet ended by itself: {_last_words(folder / 'kubelet.log')}"


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if line.startswith("panic:")] or lines[-5:])


@contextmanager
def groups(name: str) -> Iterator[str]:
    """A root for the groups of a kubelet, which wants it to be there; in version 1 in every hierarchy."""
    root = Path("/sys/fs/cgroup")
    for place in [root] if (root / "cgroup.controllers").exists() else root.iterdir():
        made = place / name
        made.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if place.name == "cpuset":
                (made / file).write_text((place / file).read_text())
    try:
        yield f"/{name}"
    finally:
        for made in root.glob(f"**/{name}"):
            for below, _, _ in os.walk(made, topdown=False):
                _remove_group(Path(below))


def _remove_group(place: Path) -> None:
    """Processes that were killed may leave it a moment later."""
    for _ in range(50):
        try:
            place.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return
    place.rmdir()


@contextmanager
def machine_as_before(lab: Lab, folder: Path) -> Iterator[None]:
    settings = {path: path.read_text() for path in SYSCTLS}
    is_new = not DEVICES.parent.exists()
    logs = set(LOGS.iterdir()) if LOGS.exists() else set()
    try:
        yield
    finally:
        for path, value in settings.items():
            if path.read_text() != value:
                path.write_text(value)
        new_logs = [one for one in LOGS.iterdir() if one not in logs] if LOGS.exists() else []
        ours = (lab.place.directory, *new_logs)
        for link in LINKS.glob("*.log"):
            if link.is_symlink() and any(link.readlink().is_relative_to(one) for one in ours):
                link.unlink()
        for one in new_logs:
            shutil.rmtree(one)
        if is_new and DEVICES.exists():
            shutil.rmtree(DEVICES)
            DEVICES.parent.rmdir()
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted((one for one in mounts if one.startswith(str(folder))), key=len, reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=True)
