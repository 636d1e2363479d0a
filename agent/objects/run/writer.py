# SPDX-License-Identifier: Apache-2.0
"""Manifest files that kepd itself changes: each is there whole or not at all, with the mode and owner that it had.

A change was made from a content that was read before. Whoever edits the file between that read and our write keeps
what they wrote: the write is then refused as `Edited`, and the caller begins again with the newer content.
"""

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from agent.config.strict_yaml import UnreadableYaml
from agent.model.refused import Refused
from agent.objects.decoding import PREPARED
from agent.objects.documents import read_objects, without

FILE_MODE, SECRET_MODE = 0o640, 0o600
MOST_TRIES = 5
LONGEST_WHOLE = 200
"""Longer names have a short one as drafts."""
AT_FDCWD, NO_REPLACE, EXCHANGE = -100, 1, 2
# File systems that cannot swap two names.
UNABLE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
# Pods that are deleted, Jobs whose time is up and what is applied are written by threads of their own, and all drafts
# of a file have one name.
WRITING = threading.Lock()
FULL = (errno.ENOSPC, errno.EDQUOT)


class Edited(OSError):
    """The file is not what it was when it was read."""


def take_out(path: str, key: tuple[str, str, str], check: Callable[[dict[str, object]], None] | None = None) -> None:
    """Out of its file, which goes with its last object. `check` raises where the object must stay. Raises Refused where
    the rest cannot stay as it is."""
    for _ in range(MOST_TRIES):
        try:
            _take_out(Path(path), key, check)
            return
        except FileNotFoundError:
            return
        except Edited:
            continue
        except OSError as error:
            raise unwritten(path, error) from error
    raise Refused("conflict", f"{path} is edited all the time, so {key[0]} {key[2]} is still in it; try again")


def unwritten(path: str, error: OSError) -> Refused:
    text = f"{path} cannot be written: {error.strerror}; nothing is changed"
    return Refused("disk_full" if error.errno in FULL else "precondition", text)


def _take_out(file: Path, key: tuple[str, str, str], check: Callable[[dict[str, object]], None] | None) -> None:
    content = file.read_bytes()
    with PREPARED.holding(content, str(file)):
        rest = _without(file, content, key, check)
    if rest is None:
        return
    if rest:
        write_whole(file, rest, FILE_MODE, content)
    else:
        with WRITING:
            remove(file, content)


def _without(
    file: Path, content: bytes, key: tuple[str, str, str], check: Callable[[dict[str, object]], None] | None
) -> bytes | None:
    try:
        found = next((each for each in read_objects(str(file), content) if each.key == key), None)
        if found is None:
            return None
        if check is not None:
            check(found.content)
        return without(str(file), content, found)
    except UnreadableYaml as error:
        raise Refused("precondition", f"{error.finding}; remove {key[0]} {key[2]} from that file") from error


def write_whole(path: Path, content: bytes, mode: int, before: bytes | None) -> None:
    """Whole or not at all, with the mode and owner that the file has. `before` is what it had when it was read, None
    for a file that was not there. Raises Edited where that is not so any more."""
    with WRITING:
        _write_whole(Path(os.path.realpath(path)), content, mode, before)


def _write_whole(place: Path, content: bytes, mode: int, before: bytes | None) -> None:
    try:
        put(write_draft(place, content, mode), place, before)
    finally:
        # On a full disk half a draft would keep what little there is.
        draft_of(place).unlink(missing_ok=True)


def write_draft(place: Path, content: bytes, mode: int) -> Path:
    """Beside its file, with the mode and owner that this has; `mode` is of a new one."""
    draft = draft_of(place)
    draft.unlink(missing_ok=True)
    with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, SECRET_MODE)) as target:
        target.write(content)
        # Before the sync, or it would sync a file without what it is to have.
        target.flush()
        with suppress(FileNotFoundError):
            there = place.stat()
            os.chown(target.fileno(), there.st_uid, there.st_gid)
            mode = there.st_mode & 0o7777
        os.fchmod(target.fileno(), mode)
        os.fsync(target.fileno())
    return draft


def draft_of(place: Path) -> Path:
    name = place.name
    if len(name) > LONGEST_WHOLE:
        name = f"{name[:180]}-{blake2b(os.fsencode(name), digest_size=8).hexdigest()}"
    return place.with_name(f".{name}.draft")


def put(draft: Path, place: Path, before: bytes | None) -> None:
    """Raises Edited."""
    if before is None:
        _put_new(draft, place)
    else:
        _put_instead(draft, place, before)


def _put_new(draft: Path, place: Path) -> None:
    try:
        _rename(draft, place, NO_REPLACE)
    except FileExistsError as error:
        raise Edited(error.errno, "is there by now", str(place)) from error
    except OSError as error:
        if error.errno not in UNABLE or place.exists():
            raise
        draft.rename(place)


def _put_instead(draft: Path, place: Path, before: bytes) -> None:
    """Both names are swapped, so that what was replaced can be looked at, and put back where it is an edit."""
    own = draft.lstat().st_ino
    try:
        _rename(draft, place, EXCHANGE)
    except FileNotFoundError as error:
        raise Edited(error.errno, "is gone by now", str(place)) from error
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        if place.read_bytes() != before:
            raise Edited(errno.EBUSY, "was edited meanwhile", str(place)) from error
        draft.rename(place)
        return
    if content_of(draft) == before:
        return
    _rename(draft, place, EXCHANGE)
    if draft.lstat().st_ino != own:
        # Another edit came between both swaps; it is the newest, so it is what stays.
        _rename(draft, place, EXCHANGE)
    raise Edited(errno.EBUSY, "was edited meanwhile", str(place))


def remove(file: Path, before: bytes) -> None:
    """Of a link only the link."""
    draft = draft_of(file)
    file.replace(draft)
    if content_of(draft) != before:
        # A newer file of that name is the newest edit, so this one has been overwritten.
        with suppress(Edited):
            _put_new(draft, file)
        draft.unlink(missing_ok=True)
        raise Edited(errno.EBUSY, "was edited meanwhile", str(file))
    draft.unlink()


def content_of(path: Path) -> bytes | None:
    """None for what an edit made of it that is no text: a link that leads nowhere, a directory."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _rename(source: Path, target: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))
