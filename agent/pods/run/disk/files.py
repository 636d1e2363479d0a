# SPDX-License-Identifier: Apache-2.0
"""A pod's own directory: volumes, hosts file, termination messages.

Owns: `pods.directory/UID` and everything below it. Content of volumes is swapped whole (VOL-07): whoever reads sees the
old or the new, never a mixture. Blocking; called in threads.
Never: leaves the directory, follows a link out of a volume (VOL-05), or removes what containers may still use.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from agent.pods.run.disk.id_ranges import IdRanges
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.run.disk.volume_paths import open_inside, read_inside
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.volume_plan import PlannedFile, PlannedVolume

__all__ = ["Mounts", "PodFiles"]

DIRECTORY_MODE = 0o755
PRIVATE_MODE = 0o700
SHARED_MODE = 0o777
SET_GROUP = 0o2000
STICKY = 0o1000
READABLE = 0o440
HOSTS_MODE = 0o644
MESSAGE_MODE = 0o666
MOST_MESSAGE_BYTES = 4096
# One more than an environment file may have, which is for its reader to complain about.
MOST_READ_BYTES = (64 << 10) + 1
FALLBACK_LINES, FALLBACK_BYTES = 80, 2048
# Each line of a log has its time, stream and tag before it.
FALLBACK_READ = FALLBACK_BYTES + FALLBACK_LINES * 64
TAG = 2
DATA = "..data"
VOLUMES = "volumes"
MOUNT_PROBLEM = "FailedMount"
TESTS = {
    "Directory": (stat.S_ISDIR, "directory"),
    "File": (stat.S_ISREG, "file"),
    "Socket": (stat.S_ISSOCK, "socket"),
    "CharDevice": (stat.S_ISCHR, "character device"),
    "BlockDevice": (stat.S_ISBLK, "block device"),
}


class Mounts(Protocol):
    """Mounting, by blocking calls."""

    def tmpfs(self, path: Path, size_bytes: int, *, is_secret: bool) -> None: ...

    def huge_pages(self, path: Path, page_bytes: int, size_bytes: int) -> None: ...

    def bind(self, source: Path, target: Path) -> None: ...

    def is_mounted(self, path: Path) -> bool: ...

    def unmount_below(self, directory: Path) -> None: ...


class PodFiles:
    """All pods' directories. Methods raise OSError, and ConfigProblem for what the manifest asks and cannot have."""

    def __init__(self, directory: Path, logs: LogDirectories, mounts: Mounts) -> None:
        self.directory = directory
        self.logs = logs
        self.ranges = IdRanges(directory)
        self._mounts = mounts

    def of(self, uid: str) -> Path:
        """The directory of one pod."""
        path = self.directory / "pods" / uid
        if path.parent != self.directory / "pods" or uid in ("", ".", ".."):
            raise ValueError(f"{uid!r} is no name for a directory")
        return path

    def prepare(self, uid: str, volumes: Sequence[PlannedVolume]) -> None:
        """Make what is missing and bring contents up to date; doing it again changes nothing."""
        home = self.of(uid)
        home.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
        for volume in volumes:
            if volume.host_path:
                _check_host_path(volume)
                continue
            place = home / volume.directory
            is_new = not place.exists()
            place.mkdir(parents=True, exist_ok=True)
            if is_new:
                place.chmod(SHARED_MODE if volume.files is None else DIRECTORY_MODE)
            if volume.tmpfs_bytes is not None or volume.page_bytes:
                # Memory does not outlive a reboot, its directory does.
                is_new = is_new or not self._mounts.is_mounted(place)
            if volume.tmpfs_bytes is not None:
                self._mounts.tmpfs(place, volume.tmpfs_bytes, is_secret=volume.files is not None)
            if volume.page_bytes:
                self._mounts.huge_pages(place, volume.page_bytes, volume.limit_bytes)
            if volume.group is not None and is_new:
                os.chown(place, -1, volume.group)
                mode = DIRECTORY_MODE if volume.files is not None else SHARED_MODE
                is_memory = volume.files is None and volume.tmpfs_bytes is not None
                place.chmod(mode | SET_GROUP | (STICKY if is_memory else 0))
            if volume.files is not None:
                swap_content(place, volume.files, volume.group)

    def source(self, uid: str, place: str, sub_path: str, number: str) -> Path:
        """What is mounted: a volume, or a path in it, bound where nobody can put a link in its way (VOL-05)."""
        home = self.of(uid)
        root = Path(place) if place.startswith("/") else home / place
        if not sub_path:
            return root
        handle = open_inside(root, sub_path)
        try:
            target = home / "subpaths" / number
            self._bind(handle, target)
        finally:
            os.close(handle)
        return target

    def _bind(self, handle: int, target: Path) -> None:
        """What was bound for an earlier instance stays if it is the same; content may have been swapped since."""
        told = os.fstat(handle)
        if target.exists():
            there = target.stat()
            if (there.st_dev, there.st_ino) == (told.st_dev, told.st_ino):
                return
            self._mounts.unmount_below(target)
            if target.is_dir() != stat.S_ISDIR(told.st_mode):
                target.rmdir() if target.is_dir() else target.unlink()
        target.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
        if stat.S_ISDIR(told.st_mode):
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        self._mounts.bind(Path(f"/proc/self/fd/{handle}"), target)

    def read_below(self, uid: str, place: str, path: str) -> bytes | None:
        """The beginning of a file that a container wrote into a volume; None if there is none."""
        return read_inside(self.of(uid) / place, path, MOST_READ_BYTES)

    def write_hosts(self, uid: str, text: str) -> Path:
        """The hosts file, anew at each start of a container (NET-01). The same file, because it is mounted."""
        path = self.of(uid) / "etc-hosts"
        path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
        path.write_text(text)
        path.chmod(HOSTS_MODE)
        return path

    def message_file(self, uid: str, container: str) -> Path:
        """A new file for a container's last words (TMS-01)."""
        folder = self.of(uid) / "containers" / container
        folder.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        path = folder / secrets.token_hex(4)
        path.touch()
        path.chmod(MESSAGE_MODE)
        return path

    def read_message(self, path: Path, log: Path, *, falls_back: bool) -> str:
        """The end of what a container wrote, else of its log where the policy says so."""
        text = tail_of(path, MOST_MESSAGE_BYTES)
        if text or not falls_back:
            return text
        return last_lines(tail_of(log, FALLBACK_READ), FALLBACK_LINES, FALLBACK_BYTES)

    def used_bytes(self, uid: str, place: str) -> int:
        """What lies in a volume (VOL-03)."""
        total = 0
        for folder, _, files in os.walk(self.of(uid) / place):
            for name in files:
                with suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512  # noqa: PTH118  # thousands of files
        return total

    def remove(self, uid: str) -> None:
        """Everything of a pod that is gone. Nothing is removed while something is still mounted in it."""
        home = self.of(uid)
        if home.is_dir():
            self._mounts.unmount_below(home)
            shutil.rmtree(home, ignore_errors=False)

    def release(self, uid: str) -> None:
        """The volumes of a pod that has ended and stays as a record (TRM-18); its last words stay with it."""
        home = self.of(uid)
        if home.is_dir():
            self._mounts.unmount_below(home)
            if (home / VOLUMES).is_dir():
                shutil.rmtree(home / VOLUMES, ignore_errors=False)

    def known(self) -> list[str]:
        """Uids of pods that have a directory."""
        folder = self.directory / "pods"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _check_host_path(volume: PlannedVolume) -> None:
    try:
        check_host_path(volume.host_path, volume.check)
    except ConfigProblem as problem:
        text = f'volume "{volume.name}" cannot be mounted: {problem}'
        raise ConfigProblem(text, problem.reason) from problem


def check_host_path(path: str, kind: str) -> None:
    """VOL-04."""
    place = Path(path)
    if kind == "DirectoryOrCreate" and not place.exists():
        place.mkdir(parents=True, mode=DIRECTORY_MODE)
    elif kind == "FileOrCreate" and not place.exists():
        try:
            place.touch(mode=HOSTS_MODE)
        except OSError as error:
            raise ConfigProblem(f"hostPath {path} cannot be made: {error.strerror}", MOUNT_PROBLEM) from error
    if not kind:
        return
    test, name = TESTS[kind.removesuffix("OrCreate")]
    try:
        is_right = test(place.stat().st_mode)
    except OSError:
        is_right = False
    if not is_right:
        raise ConfigProblem(f"hostPath type check failed: {path} is not a {name}", MOUNT_PROBLEM)


def swap_content(place: Path, files: Sequence[PlannedFile], group: int | None) -> None:
    """A new directory with the content, made visible by one rename; nothing is done where nothing changed."""
    if _is_same(place, files, group):
        return
    fresh = place / f"..{secrets.token_hex(8)}"
    fresh.mkdir(mode=DIRECTORY_MODE)
    for file in files:
        path = fresh / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(_mode(file, group))
        if group is not None:
            os.chown(path, -1, group)
    before = str((place / DATA).readlink()) if (place / DATA).is_symlink() else ""
    draft = place / f"{DATA}_tmp"
    draft.unlink(missing_ok=True)
    draft.symlink_to(fresh.name)
    draft.rename(place / DATA)
    wanted = {file.path.split("/")[0] for file in files}
    for name in wanted:
        link = place / name
        if not link.is_symlink():
            link.symlink_to(f"{DATA}/{name}")
    for path in place.iterdir():
        if not path.name.startswith("..") and path.name not in wanted:
            path.unlink()
    if before and before != fresh.name:
        shutil.rmtree(place / before, ignore_errors=True)


def _mode(file: PlannedFile, group: int | None) -> int:
    """Whoever has the pod's group reads, and so does the owner."""
    return file.mode | (READABLE if group is not None else 0)


def _is_same(place: Path, files: Sequence[PlannedFile], group: int | None) -> bool:
    root = place / DATA
    if not root.is_symlink():
        return False
    try:
        there = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        return there.keys() == {file.path for file in files} and all(
            there[file.path].read_bytes() == file.content
            and stat.S_IMODE(there[file.path].stat().st_mode) == _mode(file, group)
            for file in files
        )
    except OSError:
        return False


def tail_of(path: Path, most: int) -> str:
    """The last bytes of a file as text; of one that is not there, or is no file, nothing.

    Containers write there, so nothing is followed and nothing waited for.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        told = os.fstat(handle)
        if not stat.S_ISREG(told.st_mode):
            return ""
        return os.pread(handle, most, max(told.st_size - most, 0)).decode("utf-8", "replace")
    finally:
        os.close(handle)


def last_lines(log: str, most_lines: int, most_bytes: int) -> str:
    """What a container wrote, out of the lines of its log: `TIME STREAM P|F TEXT`; P has no end of line."""
    found = []
    for line in log.splitlines():
        words = line.split(" ", 3)
        if len(words) > TAG and words[TAG] in ("P", "F"):
            found.append((words[3] if len(words) > TAG + 1 else "") + ("\n" if words[TAG] == "F" else ""))
    text = "".join(found[-most_lines:]).encode()
    return text[-most_bytes:].decode("utf-8", "replace")
