# SPDX-License-Identifier: Apache-2.0
"""The lab against the machine it runs on: real containers start, faults are real, nothing stays behind.

Owns: the proof that tests which use the lab stand on firm ground.
Never: skips when a part of the lab can't start; that is a failure.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.lab import Image, Lab, LabError, Pod, Throttle
from tests.lab.containerd import is_lowering_oom_score_refused
from tests.lab.cri import Cri
from tests.lab.place import Place
from tests.lab.sweep import lab_processes, leftovers
from tests.lab.throttle import SOURCE_ROOT

pytestmark = pytest.mark.node

KIB = 1024
IMAGE = Image(name="lab/test", environment={"GREETING": "hello"})


@pytest.fixture
def parent() -> Iterator[Path]:
    """A directory with a short path for the labs of one test."""
    with tempfile.TemporaryDirectory(prefix="kl") as directory:
        yield Path(directory)
        assert list(Path(directory).iterdir()) == []


def eventually(is_true: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, f"still false after {within_s} s"
        time.sleep(0.01)


# pods


def test_a_preloaded_image_needs_no_registry(lab: Lab) -> None:
    """LAB-16"""
    reference = lab.preload(Image(name="lab/preloaded", labels={"a": "b"}), "registry.invalid/lab/preloaded:1")
    assert lab.cri.has_image(reference)
    pod = lab.run_pod("preloaded")
    container = pod.create("main", reference, ["/bin/sh", "-c", "echo $WHAT"], environment={"WHAT": "ran"})
    container.start()
    assert container.wait_exited() == 0
    assert container.wait_log("ran") == "ran\n"
    pod.remove()
    lab.cri.remove_image(reference)


def test_containers_outlive_a_restart_and_a_crash_of_containerd(lab: Lab) -> None:
    """LAB-25"""
    pod = lab.run_pod("outlives")
    container = pod.run("main", lab.preload(IMAGE))
    started_at = container.status().started_at
    lab.containerd.restart()
    lab.containerd.kill()
    assert not lab.containerd.is_running
    with pytest.raises(grpc.RpcError):
        container.status()
    lab.containerd.start()
    eventually(lambda: container.exec(["/bin/true"]).exit_code == 0)
    assert container.status().started_at == started_at
    pod.remove()


# throttle


def test_total_bandwidth_holds_for_parallel_layers(lab: Lab, throttle: Throttle) -> None:
    """LAB-13: the sum over all connections stays below the limit."""
    rate, size = 400 * KIB, 150 * KIB
    image = Image.sized("lab/total", size, size, size)
    lab.push(image)
    throttle.limit(total_bytes_s=rate)
    started = time.monotonic()
    lab.cri.pull(lab.throttled(image))
    took_s = time.monotonic() - started
    blobs = throttle.requests(r"^GET .*/blobs/")
    passed = sum(request.body_bytes for request in blobs)
    assert passed >= 3 * size
    assert passed / rate <= took_s < 2 * passed / rate + 1
    assert throttle.peak_in_flight(r"/blobs/") == 3


# images and configuration


def test_oom_scores_are_restricted_only_where_lowering_is_refused(lab: Lab) -> None:
    """LAB-7"""
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text("ascii").strip()
    try:
        own.write_text("-998", "ascii")
        is_refused = False
        own.write_text(before, "ascii")
    except PermissionError:
        is_refused = True
    assert is_lowering_oom_score_refused() == is_refused
    written = lab.place.containerd_config.read_text("utf-8")
    assert f"restrict_oom_score_adj = {str(is_refused).lower()}" in written


# errors


def test_a_directory_too_deep_for_sockets_is_refused(tmp_path: Path) -> None:
    """LAB-9"""
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    with pytest.raises(LabError, match="107 are allowed"):
        Lab.start(parent=deep)
    assert list(deep.iterdir()) == []


# the end


def test_nothing_stays_after_containerd_was_killed_under_a_running_pod(parent: Path) -> None:
    """LAB-32"""
    own = Lab.start(parent=parent)
    with own:
        pod = own.run_pod("orphan")
        pod.run("main", own.preload(IMAGE))
        own.containerd.kill()
        sockets = own.containerd.shim_sockets()
        alive = "\n".join(own.leftovers())
        assert len(sockets) == 1
        assert all(word in alive for word in ("process", "mount", "cgroup", "file", "directory", "containerd-shim"))
    assert own.leftovers() == []
    assert not any(path.exists() for path in sockets)
    own.close()


# python -m tests.lab


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()


def start_entry(parent: Path, *more: str) -> tuple[subprocess.Popen[str], dict[str, object]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lab", "--parent", str(parent), *more],
        cwd=SOURCE_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_the_next_lab_cleans_up_after_one_whose_owner_was_killed(parent: Path) -> None:
    """LAB-35"""
    process, described = start_entry(parent)
    place = Place(parent=parent, number=int(str(described["name"])[-4:], 16))
    with process, Cri(place.containerd_socket) as cri:
        Pod(place, cri, "orphan")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    there = {"containerd", "docker-registry", "busybox"}
    eventually(lambda: there <= {name_of(pid) for pid in lab_processes(place)})
    with Lab.start(parent=parent):
        pass
    assert leftovers(place) == []
