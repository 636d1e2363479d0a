# SPDX-License-Identifier: Apache-2.0
"""Keeps which pod has which ids of the node, in a file in each pod's own directory. Blocking; called in threads.

A range is written down before anything runs with it, and free again when its pod's directory is gone, which is after
its last container; so there is nothing to release and nothing to forget in a crash.
"""

import os
import threading
from pathlib import Path

from agent.pods.run.disk.atomic_files import make_directory
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.user_ranges import RANGE_LENGTH, decode_range, encode_range, free_range, id_source

FILE = "userns"
USER = "kepd"
SUB_USERS, SUB_GROUPS = Path("/etc/subuid"), Path("/etc/subgid")
PRIVATE_MODE = 0o700
PROBLEM = "FailedCreatePodSandBox"


class IdRanges:
    """Of all pods below one directory. `given` are the files that leave ids to us."""

    def __init__(self, directory: Path, given: tuple[Path, Path] = (SUB_USERS, SUB_GROUPS)) -> None:
        self.directory = directory / "pods"
        self._given = given
        self._lock = threading.Lock()

    def of(self, uid: str) -> int:
        """The first id of a pod, as it was or a new one. Raises OSError, and ConfigProblem if there is none."""
        path = self.directory / uid / FILE
        with self._lock:
            if path.exists():
                return self._read(path)
            first = self._free()
            make_directory(path.parent, PRIVATE_MODE)
            draft = path.with_name(f".{FILE}")
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
        first = free_range([self._read(path) for path in sorted(self.directory.glob(f"*/{FILE}"))], source)
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
