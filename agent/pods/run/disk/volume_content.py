# SPDX-License-Identifier: Apache-2.0
"""Content that kepd writes into volumes: ConfigMaps, Secrets, downward API. Blocking; called in threads.

A directory per version of the content, `..data` that leads to the one in force, and a link through it for each name. A
new version is seen whole or not at all. Each step looks at what is there, so the next call completes what a
dead one began. Never: writes where containers may write.
"""

import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path, PurePath

from agent.pods.run.disk.trees import remove_tree
from agent.pods.runtime.volume_plan import PlannedFile

DIRECTORY_MODE = 0o755
READABLE = 0o440
DATA, DRAFT = "..data", "..data_tmp"
OWN = ".."


def swap_content(place: Path, files: Sequence[PlannedFile], group: int | None) -> None:
    """Make the content visible; nothing is done where nothing changed. Of files with one path the last counts."""
    files = list({file.path: file for file in files}.values())
    _drop_leftovers(place)
    if not _is_same(place / DATA, files, group):
        fresh = place / f"{OWN}{secrets.token_hex(8)}"
        _write(fresh, files, group)
        (place / DRAFT).symlink_to(fresh.name)
        (place / DRAFT).rename(place / DATA)
        _drop_leftovers(place)
    _link(place, {PurePath(file.path).parts[0] for file in files})


def _drop_leftovers(place: Path) -> None:
    """Versions that are not in force, and drafts: of the version before, and of calls that died."""
    data = place / DATA
    kept = {DATA, str(data.readlink())} if data.is_symlink() else set()
    for path in place.iterdir():
        if path.name.startswith(OWN) and path.name not in kept:
            remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _write(fresh: Path, files: Sequence[PlannedFile], group: int | None) -> None:
    """Modes are set one by one, whatever the umask: who reads here is seldom root."""
    for folder in sorted(_folders(files), key=lambda one: len(one.parts)):
        path = fresh / folder
        path.mkdir()
        path.chmod(DIRECTORY_MODE)
    for file in files:
        path = fresh / file.path
        path.write_bytes(file.content)
        if group is not None:
            os.chown(path, -1, group)
        path.chmod(_mode(file, group))


def _link(place: Path, wanted: set[str]) -> None:
    for name in sorted(wanted):
        link, target = place / name, Path(DATA, name)
        if not (link.is_symlink() and link.readlink() == target):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    for path in place.iterdir():
        if not path.name.startswith(OWN) and path.name not in wanted:
            path.unlink()


def _folders(files: Sequence[PlannedFile]) -> dict[PurePath, set[str]]:
    found: dict[PurePath, set[str]] = {PurePath(): set()}
    for file in files:
        path = PurePath(file.path)
        for below, above in zip((path, *path.parents), path.parents, strict=False):
            found.setdefault(above, set()).add(below.name)
    return found


def _mode(file: PlannedFile, group: int | None) -> int:
    """Whoever has the pod's group reads, and so does the owner."""
    return file.mode | (READABLE if group is not None else 0)


def _is_same(root: Path, files: Sequence[PlannedFile], group: int | None) -> bool:
    try:
        return all(
            set(os.listdir(root / folder)) == names  # noqa: PTH208  # names only
            and stat.S_IMODE((root / folder).stat().st_mode) == DIRECTORY_MODE
            for folder, names in _folders(files).items()
        ) and all(_is_file(root / file.path, file, group) for file in files)
    except OSError:
        return False


def _is_file(path: Path, file: PlannedFile, group: int | None) -> bool:
    status = path.lstat()
    is_right = stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == _mode(file, group)
    return is_right and (group is None or status.st_gid == group) and path.read_bytes() == file.content
