# SPDX-License-Identifier: Apache-2.0
"""What watchers may ask the next process for: versions and changes, from an orderly end to the next start.

Root alone reads the file, for it has values of Secrets. It is taken away when it is read: after a process that was
killed nobody knows what it told, so watchers list again.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from agent.kit.configuration import write_atomically
from agent.objects.feed import Remembered

log = structlog.get_logger(plane="api")
FILE = "changes.json"


class Told(msgspec.Struct, frozen=True):
    """`last` is the highest version that was told; `kinds` are by their plurals."""

    last: int = 0
    kinds: Mapping[str, Remembered] = {}


NOTHING = Told()


def take(folder: Path) -> Told:
    """Blocking."""
    try:
        content = (folder / FILE).read_bytes()
        (folder / FILE).unlink()
        return msgspec.json.decode(content, type=Told)
    except FileNotFoundError:
        return NOTHING
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("door_changes_lost", file=str(folder / FILE), error=str(error), effect="watchers list again")
        return NOTHING


def keep(folder: Path, told: Told) -> None:
    """Blocking."""
    try:
        write_atomically(folder / FILE, msgspec.json.encode(told))
    except OSError as error:
        log.warning("door_changes_not_kept", file=str(folder / FILE), error=str(error), effect="watchers list again")
