# SPDX-License-Identifier: Apache-2.0
"""Deeds of another user, in a child of a test that runs as root."""

import ctypes
import gc
import multiprocessing
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.kit.plane_lock import PlaneTaken

NOBODY = 65534
VERSION_3 = 0x20080522


def as_user(uid: int, gid: int, groups: Sequence[int], deed: Callable[[], object]) -> object:
    """What a deed says in a process of that user without capabilities, or the name of its error."""

    def run() -> None:
        # What other tests left belongs to the parent: its threads, which such an object may need, are not here.
        gc.freeze()
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
        # Otherwise uid 0 would keep all of them, which root of the units does not have.
        if ctypes.CDLL(None).capset(struct.pack("Ii", VERSION_3, 0), bytes(24)):
            raise OSError("capset failed")
        os.umask(0o077)
        try:
            said.send(deed())
        except (OSError, PlaneTaken) as error:
            said.send(type(error).__name__)

    hears, said = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    # A child that ends without a word is an error, and no wait.
    said.close()
    answer = hears.recv()
    child.join()
    return answer


def passable(folder: Path) -> None:
    """Every user may pass through a test's directories, so that nothing but kepd's own rights keeps them out."""
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
