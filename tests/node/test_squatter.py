# SPDX-License-Identifier: Apache-2.0
"""A local user without rights tries every path that a running kepd opens to write, locks, binds, makes or removes."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.kit.plane_lock import LOCK_DIRECTORY
from tests.host.other_user import NOBODY, as_user, passable
from tests.host.process import ROOT, Kepd
from tests.lab import Image, Lab
from tests.lab.namespace import Namespace

pytestmark = pytest.mark.node

# Python reports every such call of the process to a hook. sitecustomize is run before kepd's first line.
RECORDER = """
import atexit, json, os, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
seen = set()
def note(event, arguments):
    if event == "open":
        path, _, flags = arguments
        paths = [path] if flags & WRITES else []
    elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.chown", "os.truncate", "os.mkfifo"):
        paths = [arguments[0]]
    elif event in ("os.rename", "os.link", "os.symlink"):
        paths = list(arguments[:2])
    elif event == "socket.bind":
        paths = [arguments[1]]
    else:
        return
    for path in paths:
        path = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if path.startswith("/") and path not in seen:
            seen.add(path)
            os.write(record, (json.dumps([event, path]) + "\\n").encode())
record = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(note)
"""
KERNEL = ("/proc/", "/sys/", "/dev/")


def attempts(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What a squatter does with a path, there or not, and with each directory above it."""
    yield "write", lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
    yield "mkdir", lambda: path.mkdir()
    yield "symlink", lambda: path.symlink_to("/etc/passwd")
    yield "bind", lambda: socket.socket(socket.AF_UNIX).bind(str(path))
    yield "unlink", lambda: path.unlink()
    yield "rename", lambda: path.rename(path.with_name("squatted"))
    yield "connect", lambda: socket.socket(socket.AF_UNIX).connect(str(path))


def succeeded(paths: list[Path]) -> list[tuple[str, str]]:
    found = []
    for path in paths:
        for name, deed in attempts(path):
            try:
                deed()
            except OSError:
                continue
            found.append((name, str(path)))
    return found


def test_nothing_that_kepd_touches_can_be_taken_by_another_user(lab: Lab, short_path: Path, free_port: int) -> None:
    """FX-4: before, while and after kepd is there."""
    passable(short_path)
    hooks, record = short_path / "hooks", short_path / "record"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(RECORDER)
    image = lab.push(Image(name="node/squatted"))
    group = lab.place.cgroup_parent.strip("/")
    extra = (
        f"pods: {{enabled: true, logDirectory: {short_path}/logs, cgroupRoot: '{group}', logLinkDirectory: ''}}\n"
        f"proxy: {{enabled: true, socket: {short_path}/cri/cri.sock, link: {short_path}/cri/kubelet.sock}}\n"
        "images: {enabled: true, gc: {mode: 'off'}}\n"
        "services: {enabled: true, source: manifests, healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
    )
    environment = {"PYTHONPATH": f"{hooks}:{ROOT}", "RECORD": str(record)}
    with Namespace() as node:
        node.run("ip", "link", "set", "lo", "up")
        kepd = Kepd(short_path, free_port, lab.endpoint, extra, node.command(), **environment)
        (kepd.manifests / "web.yaml").write_text(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  terminationGracePeriodSeconds: 0\n"
            "  volumes: [{name: a, emptyDir: {}}]\n  containers:\n"
            f"  - {{name: app, image: {image}, imagePullPolicy: IfNotPresent, command: [sleep, '1000'],"
            " volumeMounts: [{name: a, mountPath: /a}]}\n"
        )
        with kepd:
            kepd.start()

            def running() -> bool:
                items = kepd.pods() if kepd.socket.exists() else []
                return bool(items) and items[0]["phase"] == "Running"

            kepd.wait(running, "a pod runs")
            paths = recorded(record, short_path)
            while_there = as_user(NOBODY, NOBODY, [], lambda: succeeded(paths))
            assert kepd.get("/livez")[0] in (0, 200)
            (kepd.manifests / "web.yaml").unlink()
            kepd.wait(lambda: not kepd.pods(), "no pod")
        paths = recorded(record, short_path)
        afterwards = as_user(NOBODY, NOBODY, [], lambda: succeeded(paths))
    names = {str(path) for path in paths}

    assert any(name.startswith(f"{LOCK_DIRECTORY}/") for name in names)
    assert {str(kepd.socket), f"{short_path}/cri/cri.sock"} <= names
    assert len(names) > 20
    assert while_there == []
    assert afterwards == []


def recorded(record: Path, folder: Path) -> list[Path]:
    """With the directories above, as far as they are kepd's to choose."""
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    paths = {Path(path) for _, path in lines if not path.startswith(KERNEL)}
    above = {parent for path in paths for parent in path.parents if folder in parent.parents}
    return sorted(paths | above)
