# SPDX-License-Identifier: Apache-2.0
"""Whose manifests count: those that only root and the user of this process can write.

Pods may be privileged, so whoever writes a manifest is root. A link is judged by each directory that a link on the way
stands in, and by the file at its end. Directories above the one that is watched are the concern of whoever chose it.
"""

import os
import stat
from pathlib import Path

import msgspec

MOST_LINKS = 40


class Distrusted(OSError):
    """Another user may write it; `strerror` says who, by which mode, and what would be right."""


class Trust(msgspec.Struct, frozen=True):
    may_group_write: bool = False

    def check(self, found: os.stat_result, where: str = "") -> None:
        """Raise Distrusted. With an access control list the bits of the group stand for all of its entries."""
        owner, mode = found.st_uid, stat.S_IMODE(found.st_mode)
        if owner not in (0, os.geteuid()):
            who, remedy = f"user {owner} owns", "chown root"
        elif mode & stat.S_IWOTH:
            who, remedy = "every user may write", "chmod o-w"
        elif mode & stat.S_IWGRP and not self.may_group_write:
            who, remedy = f"group {found.st_gid} may write", "chmod g-w, or set manifests.groupWritable"
        else:
            return
        text = f"{who} {where or 'it'} (mode {mode:04o}), so it is refused; only root may write manifests: {remedy}"
        raise Distrusted(0, text)

    def check_way(self, path: Path, directory: Path) -> None:
        """The directories that links lead through; `directory` itself was judged before."""
        for _ in range(MOST_LINKS):
            if path.parent != directory:
                self.check(path.parent.stat(), f"directory {path.parent}")
            if not path.is_symlink():
                return
            path = path.parent / path.readlink()


ROOT_ALONE = Trust()


def reason(error: OSError) -> str:
    """Why something is not read."""
    text = error.strerror or str(error)
    return text if isinstance(error, Distrusted) else f"cannot be read: {text}"
