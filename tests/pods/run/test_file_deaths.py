# SPDX-License-Identifier: Apache-2.0
"""Every routine that writes for a pod dies once after each of its calls to the system, or has that call refused, and
is then run again.

What is there in the end is what an undisturbed run leaves: modes, groups, contents and links (FP-6), and it is the same
whatever the umask (FP-4).
"""

import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.volume_plan import PlannedFile, PlannedVolume
from tests.contract.fake_mounts import FakeMounts

CALLS = [
    (os, name)
    for name in (
        "chmod", "chown", "fchmod", "fchown", "link", "mkdir", "open", "rename", "replace", "rmdir", "symlink",
        "unlink",
    )
] + [(io, "open")]  # fmt: skip
VERSION = re.compile(r"\.\.[0-9a-f]{16}")
WORDS = re.compile(r"containers/app/[0-9a-f]{8}")


class Died(BaseException):
    """As by SIGKILL: nothing that catches errors catches it."""


class Counter:
    """Calls so far, and after which of them it dies; 0 is never."""

    def __init__(self, last: int) -> None:
        self.count = 0
        self.last = last

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            result = None
            try:
                result = call(*args, **named)
            finally:
                self.count += 1
                if self.count == self.last:
                    close(result)
                    raise Died
            return result

        return counted


class Refuser(Counter):
    """The same, but that call does nothing and is refused; of a file that is opened, what is written to it."""

    def __init__(self, last: int, number: int) -> None:
        super().__init__(last)
        self.error = OSError(number, os.strerror(number))

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            self._count()
            result = call(*args, **named)
            return WrittenFile(result, self._count) if call is io.open and result.writable() else result

        return counted

    def _count(self) -> None:
        self.count += 1
        if self.count == self.last:
            raise self.error


class WrittenFile:
    """An open file; `before` is called before each write."""

    def __init__(self, opened: Any, before: Callable[[], None]) -> None:
        self._opened, self._before = opened, before

    def write(self, data: Any) -> Any:
        self._before()
        return self._opened.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)


def close(opened: Any) -> None:
    """The kernel closes what a process had open."""
    if isinstance(opened, int):
        os.close(opened)
    elif opened is not None:
        opened.close()


@contextmanager
def counted_by(counter: Counter) -> Iterator[Counter]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, counter.wrapped(getattr(module, name)))
        yield counter


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def content(**texts: str) -> tuple[PlannedFile, ...]:
    return tuple(PlannedFile(name.replace("_", "/"), 0o644, text.encode()) for name, text in texts.items())


def volumes(files: tuple[PlannedFile, ...]) -> list[PlannedVolume]:
    group = os.getegid()
    return [
        PlannedVolume(name="e", directory="volumes/kubernetes.io~empty-dir/e"),
        PlannedVolume(name="g", directory="volumes/kubernetes.io~empty-dir/g", group=group),
        PlannedVolume(name="m", directory="volumes/kubernetes.io~empty-dir/m", group=group, tmpfs_bytes=1 << 20),
        PlannedVolume(name="c", directory="volumes/kubernetes.io~configmap/c", files=files),
        PlannedVolume(name="s", directory="volumes/kubernetes.io~secret/s", files=files, group=group, tmpfs_bytes=1),
    ]


class Node:
    """What outlives kepd: a disk and what is mounted."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        place.chmod(0o755)
        self.place = place
        self.mounts = FakeMounts()

    def files(self) -> PodFiles:
        """As a kepd makes them that has just started."""
        return PodFiles(self.place / "pods", LogDirectories(self.place / "logs"), self.mounts)

    def found(self) -> dict[str, tuple[str, str, int, str]]:
        """Everything below, with names of versions made equal; files for last words are new at each start."""
        found = {}
        for path in sorted(self.place.rglob("*")):
            name = VERSION.sub("..version", str(path.relative_to(self.place)))
            if WORDS.search(name):
                continue
            status = path.lstat()
            text = VERSION.sub("..version", str(path.readlink())) if path.is_symlink() else ""
            text = path.read_text() if stat.S_ISREG(status.st_mode) else text
            assert name not in found, "another version is left"
            found[name] = (stat.filemode(status.st_mode), str(status.st_uid), status.st_gid, text)
        return found


def starts(node: Node) -> None:
    """Everything that is written for a pod until its container runs."""
    files = node.files()
    files.prepare("u1", volumes(content(a="1", d_b="2")))
    files.source("u1", "volumes/kubernetes.io~empty-dir/g", "x/y", "app-0")
    files.source("u1", "volumes/kubernetes.io~configmap/c", "a", "app-1")
    files.write_hosts("u1", "127.0.0.1 localhost\n")
    assert stat.S_IMODE(files.message_file("u1", "app").stat().st_mode) == 0o666
    files.logs.make(node.place / "logs" / "d_p_u1", "app")
    for path, check in (("host/made/deep", "DirectoryOrCreate"), ("file", "FileOrCreate")):
        files.hosts.check(PlannedVolume(name="h", host_path=str(node.place / path), check=check))


def changes(node: Node) -> None:
    """A source gets another content, with a key less and one more."""
    node.files().prepare("u1", volumes(content(a="new", e_f="3")))


def goes(node: Node) -> None:
    node.files().remove("u1")


def after_starts(place: Path) -> Node:
    node = Node(place)
    starts(node)
    return node


@pytest.mark.parametrize(
    ("before", "routine"), [(Node, starts), (after_starts, changes), (after_starts, goes)], ids=lambda one: one.__name__
)
def test_a_routine_that_died_anywhere_is_brought_to_its_end_by_the_next(
    tmp_path: Path, before: Callable[[Path], Node], routine: Callable[[Node], None]
) -> None:
    """FP-6."""
    with umask(0o077):
        undisturbed = before(tmp_path / "undisturbed")
        with counted_by(Counter(0)) as counter:
            routine(undisturbed)
        wanted = undisturbed.found()
        assert counter.count > 5

        for last in range(1, counter.count + 1):
            node = before(tmp_path / str(last))
            with counted_by(Counter(last)), pytest.raises(Died):
                routine(node)
            routine(node)
            assert node.found() == wanted, f"died after call {last} of {counter.count}"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EPERM], ids=lambda one: errno.errorcode[one])
@pytest.mark.parametrize(
    ("before", "routine"), [(Node, starts), (after_starts, changes), (after_starts, goes)], ids=lambda one: one.__name__
)
def test_a_call_that_is_refused_is_told_and_made_up_for(
    tmp_path: Path, before: Callable[[Path], Node], routine: Callable[[Node], None], number: int
) -> None:
    """FP-6: a disk that is full, fails or is read-only, for one call, whichever."""
    undisturbed = before(tmp_path / "undisturbed")
    with counted_by(Refuser(0, number)) as counter:
        routine(undisturbed)
    wanted = undisturbed.found()
    assert counter.count > 5

    for last in range(1, counter.count + 1):
        node = before(tmp_path / str(last))
        refused: Exception | None = None
        with counted_by(Refuser(last, number)):
            try:
                routine(node)
            except (OSError, ConfigProblem) as error:
                refused = error
        assert refused is not None or node.found() == wanted, f"call {last} of {counter.count} was refused in silence"
        routine(node)
        assert node.found() == wanted, f"refused call {last} of {counter.count}"


def test_nothing_depends_on_the_umask(tmp_path: Path) -> None:
    """FP-4: the unit has 0077, and who reads in a container is seldom root."""
    found = {}
    for mask in (0o022, 0o077, 0o777):
        with umask(mask):
            node = Node(tmp_path / f"{mask:o}")
            starts(node)
            changes(node)
            found[mask] = node.found()

    assert found[0o077] == found[0o022]
    assert found[0o777] == found[0o022]
    modes = {name: mode for name, (mode, *_) in found[0o077].items()}
    volume = "pods/pods/u1/volumes/kubernetes.io~"
    assert modes[f"{volume}empty-dir/e"] == "drwxrwxrwx"
    assert modes[f"{volume}empty-dir/g"] == "drwxrwsrwx"
    assert modes[f"{volume}empty-dir/g/x/y"] == "drwxrwsrwx"
    assert modes[f"{volume}empty-dir/m"] == "drwxrwsrwt"
    assert modes[f"{volume}configmap/c"] == modes[f"{volume}configmap/c/..version/e"] == "drwxr-xr-x"
    assert modes[f"{volume}configmap/c/..version/e/f"] == "-rw-r--r--"
    assert modes[f"{volume}secret/s"] == "drwxr-sr-x"
    assert modes["logs/d_p_u1/app"] == modes["host/made/deep"] == "drwxr-xr-x"


def test_rights_that_a_container_gave_its_volume_stay(tmp_path: Path) -> None:
    """VOL-01: at the next start of a container, and of kepd."""
    node = Node(tmp_path / "node")
    starts(node)
    for name in ("e", "g", "m"):
        (node.files().of("u1") / f"volumes/kubernetes.io~empty-dir/{name}").chmod(0o700)
    starts(node)

    modes = {name[-1]: mode for name, (mode, *_) in node.found().items() if re.search(r"empty-dir/.\Z", name)}
    assert modes == dict.fromkeys("egm", "drwx------")


def test_a_set_group_bit_that_the_kernel_drops_is_an_error_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP-5: without CAP_FSETID the volume came to be without it at the second try."""
    real = os.fchmod
    monkeypatch.setattr(os, "fchmod", lambda handle, mode: real(handle, mode & ~stat.S_ISGID))
    node = Node(tmp_path / "node")
    for _ in range(2):
        with pytest.raises(OSError, match="CAP_FSETID"):
            starts(node)

    monkeypatch.undo()
    starts(node)
    assert node.found()["pods/pods/u1/volumes/kubernetes.io~empty-dir/g"][0] == "drwxrwsrwx"
