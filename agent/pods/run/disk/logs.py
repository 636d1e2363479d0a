# SPDX-License-Identifier: Apache-2.0
"""Container logs: the runtime writes them but makes no directories, and nothing else rotates or removes them.

`pods.logDirectory/NAMESPACE_POD_UID/CONTAINER` is removed with the pod; links for log shippers,
rotation. Blocking; called in threads.
Never: follows a link or leaves its directory, whatever a sandbox claims to be called.
"""

import gzip
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from agent.pods.run.disk.atomic_files import make_directory
from agent.pods.run.disk.trees import remove_tree
from agent.pods.runtime.names import log_directory_name, log_link_name

MODE = 0o755
ATTEMPT = re.compile(r"(\d+)\.log(?:\..+)?\Z")
TEMPORARY, COMPRESSED = ".tmp", ".gz"
# The one being written and the one just rotated are not compressed.
UNCOMPRESSED = 2


def rotated_name(current: Path, stamp: str) -> Path:
    """`0.log.20260102-030405`."""
    return current.with_name(f"{current.name}.{stamp}")


class LogDirectories:
    """Below one directory. All methods raise OSError."""

    def __init__(self, directory: Path, links: Path | None = None) -> None:
        self.directory = directory
        self.links = links

    def pod(self, namespace: str, pod: str, uid: str) -> Path:
        path = self.directory / log_directory_name(namespace, pod, uid)
        if path.parent != self.directory or path.name in (".", ".."):
            raise ValueError(f"{path} is not inside {self.directory}")
        return path

    def make(self, log_directory: Path, container: str = "") -> None:
        make_directory(log_directory / container, MODE)

    def next_attempt(self, log_directory: Path, container: str) -> int:
        """After the highest that ever wrote a log: names of attempts are used once."""
        found = -1
        with suppress(FileNotFoundError):
            for path in (log_directory / container).iterdir():
                match = ATTEMPT.match(path.name)
                found = max(found, int(match[1])) if match else found
        return found + 1

    def link(self, namespace: str, pod: str, container: str, container_id: str, log: Path) -> None:
        """Where log shippers look; only for a log that exists."""
        if self.links is None or not log.exists():
            return
        make_directory(self.links, MODE)
        link = self.links / log_link_name(namespace, pod, container, container_id)
        link.unlink(missing_ok=True)
        link.symlink_to(log)

    def remove_links(self, container_id: str) -> None:
        if self.links is not None and self.links.is_dir():
            for link in self.links.glob(f"*-{container_id}.log"):
                link.unlink(missing_ok=True)

    def remove_attempt(self, log_directory: Path, container: str, attempt: int, container_id: str) -> None:
        self.remove_links(container_id)
        for path in (log_directory / container).glob(f"{attempt}.log*"):
            path.unlink(missing_ok=True)

    def remove(self, namespace: str, pod: str, uid: str) -> None:
        with suppress(FileNotFoundError, ValueError):
            remove_tree(self.pod(namespace, pod, uid))

    def clear(self, log_directory: Path) -> int:
        """All logs of a pod that ended; answers the bytes. The newest of each container stays as an empty file, for its
        number must not be used again."""
        freed = 0
        with suppress(FileNotFoundError):
            for folder in log_directory.iterdir():
                if folder.is_dir() and not folder.is_symlink():
                    freed += _clear(folder)
        return freed

    def is_full(self, log: Path, most_bytes: int) -> bool:
        with suppress(FileNotFoundError):
            return most_bytes >= 0 and log.stat().st_size >= most_bytes
        return False

    def rotate(self, log: Path, stamp: str, most_files: int) -> Path:
        """Everything but telling the runtime, which is the caller's; answers where the current log is now."""
        older = sorted(path for path in log.parent.glob(f"{log.name}.*") if path.suffix != TEMPORARY)
        for path in log.parent.glob(f"{log.name}.*{TEMPORARY}"):
            path.unlink(missing_ok=True)
        for path in older:
            if path.suffix == COMPRESSED:
                path.with_suffix("").unlink(missing_ok=True)
        older = [path for path in older if path.exists()]
        keep = most_files - UNCOMPRESSED
        for path in older[: max(len(older) - keep, 0)]:
            path.unlink(missing_ok=True)
        for path in older[max(len(older) - keep, 0) :]:
            if path.suffix != COMPRESSED:
                _compress(path)
        moved = rotated_name(log, stamp)
        log.rename(moved)
        return moved


def _clear(folder: Path) -> int:
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := ATTEMPT.match(path.name))]
    newest = max((attempt for attempt, _ in found), default=0)
    freed = 0
    for _, path in found:
        freed += path.lstat().st_size
        if path.name == f"{newest}.log":
            os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC))
        else:
            path.unlink(missing_ok=True)
    return freed


def _compress(path: Path) -> None:
    draft = path.with_name(f"{path.name}{COMPRESSED}{TEMPORARY}")
    try:
        with path.open("rb") as source, gzip.open(draft, "wb") as target:
            shutil.copyfileobj(source, target)
        draft.rename(path.with_name(path.name + COMPRESSED))
    except OSError:
        # On a full disk half of it would keep what little there is.
        draft.unlink(missing_ok=True)
        raise
    path.unlink()
