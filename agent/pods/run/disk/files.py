# SPDX-License-Identifier: Apache-2.0
"""A pod's own directory, `pods.directory/UID`: volumes, hosts file, termination messages. Blocking; called in threads.

Content of volumes is swapped whole: readers see the old or the new, never a mixture.
Never: leaves the directory, follows a link out of a volume, or removes what containers may still use.
"""

import os
import secrets
import stat
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from agent.model.pods.mount_access import Access
from agent.model.reason import quoted
from agent.pods.run.checkpoints.folder import CheckpointFolder
from agent.pods.run.disk.atomic_files import FILE, make_directory, make_file, write_file
from agent.pods.run.disk.claim_directories import make_claim
from agent.pods.run.disk.logs import LogDirectories
from agent.pods.run.disk.trees import remove_tree
from agent.pods.run.disk.volume_content import swap_content
from agent.pods.run.disk.volume_paths import HostPaths, open_inside, read_inside
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.user_ranges import RANGE_LENGTH, decode_range, encode_range, free_range, id_source
from agent.pods.runtime.volume_plan import PlannedVolume

IDS_FILE = "userns"
PRIVATE_MODE, PRIVATE_FILE_MODE = 0o700, 0o600
USER = "kepd"
SUB_USERS, SUB_GROUPS = Path("/etc/subuid"), Path("/etc/subgid")
PROBLEM = "FailedCreatePodSandBox"
DIRECTORY_MODE = 0o755
SHARED_MODE = 0o777
SET_GROUP = 0o2000
STICKY = 0o1000
HOSTS_MODE = 0o644
MESSAGE_MODE = 0o666
MOST_MESSAGE_BYTES = 4096
# One more than an environment file may have, which is for its reader to complain about.
MOST_READ_BYTES = (64 << 10) + 1
FALLBACK_LINES, FALLBACK_BYTES = 80, 2048
# Each line of a log has its time, stream and tag before it.
FALLBACK_READ = FALLBACK_BYTES + FALLBACK_LINES * 64
TAG = 2
VOLUMES = "volumes"


class IdRanges:
    """Which pod has which ids of the node: of all pods below one directory. `given` are the files that leave ids to us.

    A range is written down before anything runs with it, and free again when its pod's directory is gone, which is
    after its last container; so there is nothing to release and nothing to forget in a crash.
    """

    def __init__(self, directory: Path, given: tuple[Path, Path] = (SUB_USERS, SUB_GROUPS)) -> None:
        self.directory = directory / "pods"
        self._given = given
        self._lock = threading.Lock()

    def of(self, uid: str) -> int:
        """The first id of a pod, as it was or a new one. Raises OSError, and ConfigProblem if there is none."""
        path = self.directory / uid / IDS_FILE
        with self._lock:
            if path.exists():
                return self._read(path)
            first = self._free()
            make_directory(path.parent, PRIVATE_MODE)
            draft = path.with_name(f".{IDS_FILE}")
            with draft.open("wb") as out:
                out.write(encode_range(first))
                out.flush()
                os.fsync(out.fileno())
            draft.rename(path)
            return first

    def _free(self) -> int:
        users, groups = (path.read_text() if path.exists() else "" for path in self._given)
        try:
            source = id_source(users, groups, USER)
        except ValueError as error:
            raise ConfigProblem(str(error), PROBLEM) from error
        # One that cannot be read may be anybody's, so no new pod starts before it is mended.
        first = free_range([self._read(path) for path in sorted(self.directory.glob(f"*/{IDS_FILE}"))], source)
        if first is None:
            text = f"no {RANGE_LENGTH} ids are left for its users: {source.count} from {source.first} on are taken"
            raise ConfigProblem(text, PROBLEM)
        return first

    @staticmethod
    def _read(path: Path) -> int:
        try:
            return decode_range(path.read_bytes())
        except ValueError as error:
            raise ConfigProblem(f"{path} cannot be read: {error}", PROBLEM) from error


class Mounts(Protocol):
    def tmpfs(self, path: Path, size_bytes: int, access: Access, *, is_secret: bool) -> None: ...

    def huge_pages(self, path: Path, page_bytes: int, size_bytes: int, access: Access) -> None: ...

    def bind(self, source: Path, target: Path) -> None: ...

    def unmount_below(self, directory: Path) -> None: ...


class PodFiles:
    """All pods' directories; `own` are others of kepd. Methods raise OSError, and ConfigProblem for what the manifest
    asks and cannot have. `written` are the paths of the node that containers may change."""

    def __init__(self, directory: Path, logs: LogDirectories, mounts: Mounts, own: Sequence[Path] = ()) -> None:
        # What is mounted has its whole path in the kernel's table, whatever links lead here.
        self.directory = directory.resolve()
        self.logs = logs
        self.checkpoints = CheckpointFolder(directory / "checkpoints")
        self.ranges = IdRanges(self.directory)
        self._mounts = mounts
        self.hosts = HostPaths((self.directory, *own), [one for one in (logs.directory, logs.links) if one])
        self._locks: dict[str, threading.Lock] = {}

    def of(self, uid: str) -> Path:
        path = self.directory / "pods" / uid
        if path.parent != self.directory / "pods" or uid in ("", ".", ".."):
            raise ValueError(f"{uid!r} is not a valid name of a directory")
        return path

    def prepare(self, uid: str, volumes: Sequence[PlannedVolume], written: Collection[str] = ()) -> None:
        """Make what is missing and bring contents up to date; doing it again changes nothing."""
        home = self._home(uid)
        # A change of a source and the start of a container may come at the same time.
        with self._locks.setdefault(uid, threading.Lock()):
            for volume in volumes:
                if volume.is_made:
                    make_claim(volume.host_path)
                elif volume.host_path:
                    self.hosts.check(volume, written)
                else:
                    self._make(home / volume.directory, volume)

    def _home(self, uid: str) -> Path:
        home = self.of(uid)
        make_directory(home, PRIVATE_MODE)
        return home

    def _make(self, place: Path, volume: PlannedVolume) -> None:
        """What is there, or is mounted there, stays: a container may have given it other rights."""
        access = _access(volume)
        make_directory(place, access.mode, access.group, above_mode=DIRECTORY_MODE)
        if volume.tmpfs_bytes is not None:
            # Memory does not outlive a reboot, its directory does.
            self._mounts.tmpfs(place, volume.tmpfs_bytes, access, is_secret=volume.files is not None)
        if volume.page_bytes:
            self._mounts.huge_pages(place, volume.page_bytes, volume.limit_bytes, access)
        if volume.files is not None:
            swap_content(place, volume.files, volume.group)

    def source(self, uid: str, place: str, sub_path: str, number: str, written: Collection[str] = ()) -> Path:
        """What is mounted: a volume, or a path in it, bound where no link can be put in its way."""
        home = self.of(uid)
        root, below = self.hosts.parted(place, written) if place.startswith("/") else (home / place, "")
        sub_path = "/".join(filter(None, (below, sub_path)))
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
        make_directory(target.parent, PRIVATE_MODE)
        if stat.S_ISDIR(told.st_mode):
            make_directory(target, PRIVATE_MODE)
        else:
            make_file(target, PRIVATE_FILE_MODE)
        self._mounts.bind(Path(f"/proc/self/fd/{handle}"), target)

    def read_below(self, uid: str, place: str, path: str) -> bytes | None:
        return read_inside(self.of(uid) / place, path, MOST_READ_BYTES)

    def write_hosts(self, uid: str, text: str) -> Path:
        """The hosts file at each start of a container. The same file as long as it says the same, because
        other containers have it mounted."""
        path = self._home(uid) / "etc-hosts"
        with self._locks.setdefault(uid, threading.Lock()):
            write_file(path, text.encode(), HOSTS_MODE)
        return path

    def message_file(self, uid: str, container: str) -> Path:
        """A new file for a container's last words."""
        folder = self._home(uid) / "containers" / container
        make_directory(folder, DIRECTORY_MODE)
        path = folder / secrets.token_hex(4)
        handle = os.open(path, FILE | os.O_EXCL, MESSAGE_MODE)
        try:
            os.fchmod(handle, MESSAGE_MODE)
        finally:
            os.close(handle)
        return path

    def read_message(self, path: Path, log: Path, *, falls_back: bool) -> str:
        """The end of what a container wrote, else of its log where the policy says so."""
        text = _tail_of(path, MOST_MESSAGE_BYTES)
        if text or not falls_back:
            return text
        return _last_lines(_tail_of(log, FALLBACK_READ), FALLBACK_LINES, FALLBACK_BYTES)

    def last_line(self, log: Path) -> str:
        """What a container said last, empty lines aside; nothing of a log that cannot be read."""
        try:
            lines = _last_lines(_tail_of(log, FALLBACK_READ), FALLBACK_LINES, FALLBACK_BYTES).splitlines()
        except OSError:
            return ""
        return quoted(next((line for line in reversed(lines) if line.strip()), ""))

    def remove(self, uid: str) -> None:
        """Everything of a pod that is gone. Nothing is removed while something is still mounted in it."""
        home = self.of(uid)
        if home.is_dir():
            self._mounts.unmount_below(home)
            remove_tree(home)
        self._locks.pop(uid, None)

    def release(self, uid: str) -> None:
        """The volumes of a pod that has ended and stays as a record; its last words stay with it."""
        home = self.of(uid)
        if home.is_dir():
            self._mounts.unmount_below(home)
            if (home / VOLUMES).is_dir():
                remove_tree(home / VOLUMES)


def _access(volume: PlannedVolume) -> Access:
    """Of the top of a volume. Memory that containers share is like /tmp."""
    mode = SHARED_MODE if volume.files is None else DIRECTORY_MODE
    if volume.files is None and volume.tmpfs_bytes is not None:
        mode |= STICKY
    return Access(mode if volume.group is None else mode | SET_GROUP, volume.group)


def _tail_of(path: Path, most: int) -> str:
    """The last bytes of a file as text, or nothing. Containers write there, so nothing is followed and nothing waited
    for."""
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


def _last_lines(log: str, most_lines: int, most_bytes: int) -> str:
    """What a container wrote, out of the lines of its log: `TIME STREAM P|F TEXT`; P has no end of line."""
    found = []
    for line in log.removesuffix("\n").split("\n"):
        words = line.split(" ", 3)
        if len(words) > TAG and words[TAG] in ("P", "F"):
            found.append((words[3] if len(words) > TAG + 1 else "") + ("\n" if words[TAG] == "F" else ""))
    text = "".join(found[-most_lines:]).encode()
    return text[-most_bytes:].decode("utf-8", "replace")
