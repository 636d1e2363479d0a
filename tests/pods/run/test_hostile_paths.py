# SPDX-License-Identifier: Apache-2.0
"""What containers can reach and change while kepd works never leads it to a file of the node.

The container is a thread that swaps what it can reach; the witness is a file outside with its content, mode and time.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.pods.manifest.validation import check_pod
from agent.pods.plan.admit import PodPlaces
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.runtime.environment import ConfigProblem, PodFacts
from agent.pods.runtime.volume_plan import PlannedFile, PlannedVolume, mount_source, plan_volumes
from tests.contract.fake_mounts import FakeMounts
from tests.pods.pods import container, make_pod

ROUNDS = 150
SECRET = "root's own\n"


class Node:
    """kepd's directories, and a witness outside of them."""

    def __init__(self, root: Path) -> None:
        self.state, self.logs, self.data, self.outside = (root / name for name in ("state", "logs", "data", "outside"))
        for one in (self.state, self.logs, self.data, self.outside):
            one.mkdir()
        self.witness = self.outside / "witness"
        self.witness.write_text(SECRET)
        self.witness.chmod(0o600)
        self.mounts = FakeMounts()
        self.files = PodFiles(self.state / "pods", LogDirectories(self.logs), self.mounts, [self.state])
        self._before = self.look()

    def look(self) -> Any:
        """Everything of the outside but when it was read, which a walk of the test itself changes."""
        found = [self.outside, *sorted(self.outside.rglob("*"))]
        return [(str(one), one.lstat().st_mode, one.lstat().st_mtime_ns, one.lstat().st_nlink) for one in found]

    def check(self) -> None:
        assert self.witness.read_text() == SECRET
        assert self.look() == self._before


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@contextmanager
def swapping(place: Path, *faces: Callable[[Path], object]) -> Iterator[None]:
    """A container that gives one name one face after the other, as fast as it can."""
    is_over = threading.Event()

    def swap() -> None:
        number = 0
        while not is_over.is_set():
            draft = place.with_name(f".swap-{number % 2}")
            with suppress(OSError):
                faces[number % len(faces)](draft)
                if place.is_dir() and not place.is_symlink():
                    place.rename(place.with_name(".old"))
                draft.rename(place)
            for left in (draft, place.with_name(".old")):
                with suppress(OSError):
                    left.rmdir() if left.is_dir() and not left.is_symlink() else left.unlink()
            number += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def host_pod(path: str, *, kind: str = "", read_only: bool = False) -> Any:
    app = container("app", volumeMounts=[{"name": "v", "mountPath": "/v", "readOnly": read_only}])
    return make_pod([app], volumes=[{"name": "v", "hostPath": {"path": path, "type": kind}}])


def prepare(node: Node, pod: Any, written: tuple[str, ...] = ()) -> Path:
    node.files.prepare(pod.uid, plan_volumes(pod, {}, PodFacts()), written)
    return node.files.source(pod.uid, mount_source(pod, "v"), "", "app-0", written)


@pytest.mark.parametrize("path", [".", "data", "./data", "~/data"])
def test_a_path_of_the_node_is_absolute(path: str) -> None:
    """NP-3."""
    (found,) = check_pod(host_pod(path).spec)

    assert (found.path, "absolute path" in found.text) == ("spec.volumes[0].hostPath.path", True)


@pytest.mark.parametrize("below", ["", "pods", "pods/pods/u1", "instance"])
def test_what_kepd_lives_by_is_no_volume(node: Node, below: str) -> None:
    """NP-3: by whatever name it is called."""
    (node.state / "instance").touch()
    (node.data / "link").symlink_to(node.state)

    for path in (node.state / below, node.data / "link" / below):
        for kind in ("", "DirectoryOrCreate"):
            with pytest.raises(ConfigProblem, match=r"which kepd gives no container at all") as caught:
                prepare(node, host_pod(str(path), kind=kind, read_only=True))
            assert caught.value.reason == "FailedMount"


def test_logs_are_there_to_be_read(node: Node) -> None:
    """NP-3: a log shipper reads them."""
    with pytest.raises(ConfigProblem, match=r"which kepd gives no container to write to"):
        prepare(node, host_pod(str(node.logs)))

    assert prepare(node, host_pod(str(node.logs), read_only=True)) == node.logs


def test_a_directory_above_may_be_mounted(node: Node) -> None:
    above = str(node.state.parent)

    assert prepare(node, host_pod(above)) == Path(above)
    assert node.files.hosts.parted(f"{node.data}/x", [above]) == (node.data / "x", "")


def test_what_pods_may_change_is_known_as_long_as_they_are_there(node: Node) -> None:
    places = PodPlaces()
    places.take(host_pod("/srv/data"))
    reader = host_pod("/srv/read", read_only=True)

    assert places.written == {"/srv/data"}
    places.take(reader)
    assert places.written == set()


@pytest.mark.parametrize("kind", ["DirectoryOrCreate", "FileOrCreate", "Directory", ""])
def test_a_link_of_another_container_leads_no_volume_astray(node: Node, kind: str) -> None:
    """NP-3."""
    (node.data / "x").symlink_to(node.outside)
    pod = host_pod(f"{node.data}/x/made", kind=kind)

    with pytest.raises(ConfigProblem):
        prepare(node, pod, (str(node.data),))
    node.check()
    assert prepare(node, host_pod(f"{node.data}/own", kind="DirectoryOrCreate"), (str(node.data),)).is_dir()


@pytest.mark.parametrize("kind", ["DirectoryOrCreate", "FileOrCreate", "Directory", ""])
def test_a_path_that_a_container_swaps_leads_nowhere_else(node: Node, kind: str) -> None:
    """NP-3."""
    pod = host_pod(f"{node.data}/x/made", kind=kind)
    with swapping(node.data / "x", Path.mkdir, lambda place: place.symlink_to(node.outside)):
        for _ in range(ROUNDS):
            with suppress(ConfigProblem, OSError):
                prepare(node, pod, (str(node.data),))

    node.check()


def faces(node: Node) -> list[Callable[[Path], object]]:
    return [
        lambda place: place.symlink_to(node.witness),
        lambda place: place.symlink_to(node.outside),
        lambda place: place.hardlink_to(node.witness),
        lambda place: os.mkfifo(place),
        Path.mkdir,
        Path.touch,
    ]


def test_a_hosts_file_that_is_swapped_leads_nowhere_else(node: Node) -> None:
    """NP-3: were the pod's directory ever within a container's reach."""
    home = node.files.write_hosts("u1", "text\n").parent
    with swapping(home / "etc-hosts", *faces(node)[:2], *faces(node)[3:]):
        for number in range(ROUNDS):
            with suppress(OSError):
                node.files.write_hosts("u1", f"text {number}\n")

    node.check()


@pytest.mark.parametrize("face", range(6))
def test_whatever_stands_where_the_hosts_file_was_stays_as_it_is(node: Node, face: int) -> None:
    """NP-3."""
    path = node.files.write_hosts("u1", "text\n")
    path.unlink()
    faces(node)[face](path)
    with suppress(IsADirectoryError):
        node.files.write_hosts("u1", "new\n")
        assert path.read_text() == "new\n"
        assert stat.S_IMODE(path.lstat().st_mode) == 0o644

    assert node.witness.read_text() == SECRET
    assert stat.S_IMODE(node.witness.stat().st_mode) == 0o600


def test_a_hosts_file_stays_the_same_while_it_says_the_same(node: Node) -> None:
    """NET-01: containers that run have it mounted."""
    first = node.files.write_hosts("u1", "text\n").stat().st_ino
    again = node.files.write_hosts("u1", "text\n").stat().st_ino
    changed = node.files.write_hosts("u1", "other\n").stat().st_ino

    assert again == first
    assert changed != first


def test_last_words_that_are_swapped_are_read_from_nowhere_else(node: Node) -> None:
    """NP-3."""
    path = node.files.message_file("u1", "app")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    with swapping(path, *faces(node)[:2], *faces(node)[3:]):
        read = {node.files.read_message(path, path, falls_back=False) for _ in range(ROUNDS)}

    assert read == {""}
    node.check()


def test_volumes_that_are_swapped_lead_nowhere_else(node: Node) -> None:
    """NP-3: an emptyDir and everything in it is the container's; a subPath and a file of variables lie there."""
    node.files.prepare("u1", [PlannedVolume(name="e", directory="volumes/e")])
    place = node.files.of("u1") / "volumes/e"
    with swapping(place / "x", Path.mkdir, lambda one: one.symlink_to(node.outside), lambda one: one.symlink_to("..")):
        for _ in range(ROUNDS):
            assert node.files.read_below("u1", "volumes/e", "x/witness") is None
            with suppress(ConfigProblem, OSError):
                node.files.source("u1", "volumes/e", "x/made", "app-0")

    node.check()


def test_content_is_written_past_what_stands_there(node: Node) -> None:
    """NP-3: volumes with content are read-only in containers; a link there is replaced and not followed."""
    volume = PlannedVolume(name="c", directory="volumes/c", files=(PlannedFile("a", 0o644, b"1"),))
    node.files.prepare("u1", [volume])
    place = node.files.of("u1") / "volumes/c"
    for name in ("a", "..data_tmp", "b"):
        with suppress(FileNotFoundError):
            (place / name).unlink()
        (place / name).symlink_to(node.witness)
    node.files.prepare("u1", [volume])

    assert (place / "a").read_text() == "1"
    node.check()


def test_a_pod_that_goes_takes_nothing_with_it(node: Node) -> None:
    """NP-3."""
    node.files.prepare("u1", [PlannedVolume(name="e", directory="volumes/e")])
    place = node.files.of("u1") / "volumes/e"
    with swapping(place / "x", Path.mkdir, lambda one: one.symlink_to(node.outside)), suppress(OSError):
        node.files.remove("u1")

    node.check()
