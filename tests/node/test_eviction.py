# SPDX-License-Identifier: Apache-2.0
"""Pods that end because this machine has less left than it was told to keep: real memory, a real disk, real figures."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

MIB = 1 << 20
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  {more}
  containers:
  - name: main
    image: "{image}"
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "{script}; trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"]
    volumeMounts: [{{name: own, mountPath: /own}}]
  volumes: [{{name: own, emptyDir: {{{medium}}}}}]
"""
STAYS = "priorityClassName: system-node-critical"


@pytest.fixture
def image(lab: Lab) -> str:
    return lab.push(Image(name="node/evicted"))


@pytest.fixture
def disk(short_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB, for all that pods write."""
    file, point = short_path / "disk.img", short_path / "disk"
    point.mkdir()
    subprocess.run(["truncate", "-s", "64M", file], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", file], check=True)
    subprocess.run(["mount", "-o", "loop", file, point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=False)


def daemon_with(lab: Lab, folder: Path, port: int, pods: Path, eviction: str, period: str = "1s") -> Kepd:
    root = lab.place.cgroup_parent.strip("/")
    extra = (
        f"pods: {{directory: {pods}, logDirectory: {folder}/logs, cgroupRoot: '{root}', logLinkDirectory: '', "
        f"eviction: {{mode: 'on', period: {period}, transition: 2s, {eviction}}}}}\nimages: {{gc: {{mode: 'off'}}}}\n"
    )
    return Kepd(folder, port, endpoint=lab.endpoint, extra=extra, KEPD_PODS__EVICTION__MODE="on")


def put(kepd: Kepd, image: str, name: str, script: str = "true", medium: str = "", more: str = "") -> None:
    draft = kepd.folder / f"{name}.draft"
    draft.write_text(POD.format(name=name, image=image, script=script, medium=medium, more=more))
    draft.rename(kepd.manifests / f"{name}.yaml")


def phase(kepd: Kepd, name: str) -> str:
    return next((str(pod.get("phase")) for pod in kepd.pods() if pod["name"] == f"{name}-n1"), "")


def ended(kepd: Kepd) -> None:
    for path in kepd.manifests.iterdir():
        path.unlink()
    kepd.wait(lambda: not kepd.pods(), "all pods gone", within_s=60)


def left_mib() -> int:
    """As kepd counts it: memory of this machine that no working set has."""
    group = Path("/sys/fs/cgroup/memory")
    lines = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal:"]) << 10
    if (group / "memory.usage_in_bytes").exists():
        inactive = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())[
            "total_inactive_file"
        ]
        return (total - int((group / "memory.usage_in_bytes").read_text()) + int(inactive)) // MIB
    inactive = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())[
        "inactive_file"
    ]
    return ((int(lines["MemFree:"]) << 10) + int(inactive)) // MIB


@pytest.mark.alone
def test_who_takes_the_memory_that_shall_be_left_ends_and_nobody_else(
    lab: Lab, image: str, short_path: Path, free_port: int
) -> None:
    """EVN-02, EVN-05, EVN-08, EVN-11: before the kernel would have to kill, and long before the next look is due; the
    node's own figures decide."""
    line = (left_mib() - 400) | 1  # whole Gi would be written otherwise
    hard = f"hard: {{memory.available: {line}Mi, nodefs.available: 0, imagefs.available: 0}}"
    with daemon_with(lab, short_path, free_port, short_path / "pods", hard, period="5m") as kepd:
        kepd.start("--planes", "pods,images").wait_ready()
        put(kepd, image, "stays", more=STAYS)
        kepd.wait(lambda: phase(kepd, "stays") == "Running", "it runs")
        put(kepd, image, "takes", "sleep 2; dd if=/dev/zero of=/own/all bs=1M count=1200", "medium: Memory")
        kepd.wait(lambda: phase(kepd, "takes") == "Failed", "it is evicted", within_s=60)
        pod = next(one for one in kepd.pods() if one["name"] == "takes-n1")
        assert pod["reason"] == "Evicted"
        assert str(pod["message"]).startswith(f"The node was low on resource: memory. Threshold quantity: {line}Mi, ")
        assert "Container main was using" in str(pod["message"])
        assert phase(kepd, "stays") == "Running"
        explained = kepd.ctl("explain", "eviction").stdout
        assert "memory.available" in explained
        assert "critical pods stay" in explained
        ended(kepd)


def test_a_full_disk_ends_the_pod_that_filled_it_and_it_comes_back(
    lab: Lab, image: str, short_path: Path, free_port: int, disk: Path
) -> None:
    """EVN-04, EVN-06, EVN-09, EVN-10: room that its volume gives back lets it begin anew, with an empty one."""
    hard = "hard: {memory.available: 0, nodefs.available: 50%, imagefs.available: 0, imagefs.inodesFree: 0}"
    with daemon_with(lab, short_path, free_port, disk / "pods", hard) as kepd:
        kepd.start("--planes", "pods,images").wait_ready()
        put(kepd, image, "other", "dd if=/dev/zero of=/own/some bs=1M count=4")
        kepd.wait(lambda: phase(kepd, "other") == "Running", "it runs")
        put(kepd, image, "fills", "[ -e /own/once ] || dd if=/dev/zero of=/own/all bs=1M count=40; touch /own/once")
        kepd.wait(lambda: phase(kepd, "fills") == "Failed", "it is evicted", within_s=60)
        conditions = kepd.ctl("get", "nodes").stdout
        assert "DiskPressure" in conditions
        assert phase(kepd, "other") == "Running"
        put(kepd, image, "late")
        kepd.wait(lambda: phase(kepd, "late") == "Pending", "the new one waits")
        began_s = time.monotonic()
        kepd.wait(lambda: phase(kepd, "late") == "Running", "it begins when there is room", within_s=60)
        kepd.wait(lambda: phase(kepd, "fills") == "Running", "it comes back", within_s=60)
        assert time.monotonic() - began_s < 60
        assert phase(kepd, "other") == "Running"
        ended(kepd)


def test_file_systems_are_shown_with_what_would_make_room(
    lab: Lab, image: str, short_path: Path, free_port: int, disk: Path
) -> None:
    """FSY-01, FSY-03, FSY-05: the pods' own disk has nothing to remove; that of images has what nothing needs."""
    with daemon_with(lab, short_path, free_port, disk / "pods", "hard: {}") as kepd:
        kepd.environment["KEPD_PODS__EVICTION__MODE"] = "off"
        where = lab.place.directory
        kepd.environment["KEPD_IMAGES__GC__FILESYSTEMS"] = f"[{{path: {where}, high: 98, low: 97}}]"
        kepd.environment["KEPD_IMAGES__GC__MODE"] = "full"
        kepd.start("--planes", "pods,images").wait_ready()
        put(kepd, image, "writes", "dd if=/dev/zero of=/own/some bs=1M count=9")
        kepd.wait(lambda: phase(kepd, "writes") == "Running", "it runs")

        def volumes() -> int:
            items = [one["status"] for one in kepd.json("get", "filesystems")["items"]]
            used = next(one for one in items if one["mount"] == str(disk))["usedBy"]
            return int(next(one["bytes"] for one in used if one["what"] == "volumes"))

        kepd.wait(lambda: volumes() >= 9 * MIB, "its volume to be counted", within_s=60)
        table = kepd.ctl("get", "filesystems", "-o", "wide").stdout
        own = next(line for line in table.splitlines() if line.startswith(f"{disk} "))
        images = next(line for line in table.splitlines() if "image,container,content" in line)
        assert table.split()[9:13] == ["HIGH", "STATE", "NEXT", "MESSAGE"]
        assert f"no removal can make room on {disk}" in own
        assert "volumes 9" in own
        assert " 98% " in images
        assert "dead containers" in images
        assert "images " in images
        ended(kepd)


def test_a_container_that_writes_more_than_its_limit_ends_its_pod(
    lab: Lab, image: str, short_path: Path, free_port: int
) -> None:
    """EVN-13: what it wrote into its own layer is the runtime's figure."""
    with daemon_with(lab, short_path, free_port, short_path / "pods", "hard: {}") as kepd:
        kepd.environment["KEPD_PODS__EVICTION__MODE"] = "off"
        kepd.start("--planes", "pods,images").wait_ready()
        limit = "resources: {limits: {ephemeral-storage: 4Mi}}"
        put(kepd, image, "writes", "dd if=/dev/zero of=/all bs=1M count=9")
        text = (
            (kepd.manifests / "writes.yaml").read_text().replace("    volumeMounts", f"    {limit}\n    volumeMounts")
        )
        put(kepd, image, "other")
        (kepd.folder / "draft").write_text(text)
        (kepd.folder / "draft").rename(kepd.manifests / "writes.yaml")
        kepd.wait(lambda: phase(kepd, "writes") == "Failed", "it is evicted", within_s=150)
        pod = next(one for one in kepd.pods() if one["name"] == "writes-n1")
        assert pod["message"] in (
            'Container main exceeded its local ephemeral storage limit "4Mi". ',
            "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. ",
        )
        assert phase(kepd, "other") == "Running"
        ended(kepd)
