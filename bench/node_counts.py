# SPDX-License-Identifier: Apache-2.0
"""What a node has of everything that could grow, in one line of JSON. Runs in a machine, with Python's library alone;
`python3 node_counts.py all` also counts what costs more: bytes on the disk, and what the journal says."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

METRICS = "http://127.0.0.1:10241/metrics"
RUNTIME = Path("/var/lib/containerd")
FOLDERS = {
    "files below /var/lib/kepd": Path("/var/lib/kepd"),
    "files below /run/kepd": Path("/run/kepd"),
    "logs of pods": Path("/var/log/pods"),
    "links to logs": Path("/var/log/containers"),
    "results of CNI": Path("/var/lib/cni/results"),
    "results of CNI that were set aside": Path("/var/lib/cni/unreadable"),
    "addresses of CNI": Path("/var/lib/cni/networks"),
    "files of CDI": Path("/var/run/cdi"),
    "blobs of containerd": RUNTIME / "io.containerd.content.v1.content/blobs",
}
NAMES = {
    "sandboxes": RUNTIME / "io.containerd.grpc.v1.cri/sandboxes",
    "containers": RUNTIME / "io.containerd.grpc.v1.cri/containers",
    "processes of containers": Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io"),
    "network namespaces": Path("/run/netns"),
    "snapshots": RUNTIME / "io.containerd.snapshotter.v1.overlayfs/snapshots",
}


def printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200).stdout


def of_process() -> dict[str, float]:
    """Of kepd; an error while it begins."""
    pid = printed("systemctl", "show", "--value", "-p", "MainPID", "kepd").strip()
    status = Path(f"/proc/{pid}/status").read_text()
    with urllib.request.urlopen(METRICS, timeout=60) as page:
        tasks = re.findall(r"(?m)^kepd_tasks (\S+)", page.read().decode())[0]
    return {
        "pid": int(pid),
        "resident memory": int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024,
        "threads": int(re.findall(r"Threads:\s+(\d+)", status)[0]),
        "descriptors": entries(Path(f"/proc/{pid}/fd")),
        "tasks": float(tasks),
    }


def of_node() -> dict[str, float]:
    found: dict[str, float] = {name: sum(len(files) for _, _, files in os.walk(path)) for name, path in FOLDERS.items()}
    found |= {name: entries(path) for name, path in NAMES.items()}
    found["shims"] = sum(is_shim(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    found["veths"] = len([*Path("/sys/class/net").glob("veth*")])
    found["mounts"] = len(Path("/proc/self/mountinfo").read_text().splitlines())
    found["control groups of pods"] = sum(1 for _ in os.walk("/sys/fs/cgroup/kepd.slice"))
    found["tracked connections"] = int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())
    ruleset = json.loads(printed("nft", "-j", "list", "ruleset"))["nftables"]
    for kind in ("table", "chain", "set", "map", "rule"):
        found[f"{kind}s of the kernel"] = sum(kind in one for one in ruleset)
    sets = [one.get("set") or one.get("map") or {} for one in ruleset]
    return found | {"elements of the kernel": sum(len(one.get("elem", ())) for one in sets)}


def entries(folder: Path) -> int:
    return len([*folder.iterdir()]) if folder.exists() else 0


def is_shim(path: Path) -> bool:
    try:
        words = path.read_text().rstrip("\0").split("\0")
    except OSError:
        return False
    return "containerd-shim" in words[0] and words[-1] not in ("start", "delete")


def of_disk() -> dict[str, float]:
    os.sync()
    used, journal = os.statvfs("/"), bytes_below("/var/log/journal")
    words = printed("journalctl", "--no-pager", "-o", "cat", "-u", "kepd")
    return {
        "disk beside the journal": ((used.f_blocks - used.f_bfree) * used.f_frsize - journal) / 2**20,
        "journal": journal / 2**20,
        "bytes below /var/lib/kepd": bytes_below("/var/lib/kepd") / 2**20,
        "tracebacks": words.count("Traceback (most recent"),
    }


def bytes_below(folder: str) -> int:
    paths = [Path(place, name) for place, _, files in os.walk(folder) for name in files]
    return sum(path.stat().st_blocks * 512 for path in paths if path.exists())


if __name__ == "__main__":
    counted = of_node() | (of_disk() if sys.argv[1:] else {})
    try:
        counted |= of_process()
    except (OSError, ValueError, IndexError):
        counted["no kepd"] = 1
    print(json.dumps(counted))
