# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps and Secrets as directories: `configmaps/NAMESPACE/NAME/KEY` and `secrets/NAMESPACE/NAME/KEY`.

Owns: walking them and reading keys within bounds. Everything is opened from the directory above it, and links are
followed only as far as they stay inside their own source, as the links of an atomic writer do (`KEY -> ..data/KEY`).
What another user may write is not read.
Never: follows a link out, waits for a pipe, takes a mixture of two versions, or judges names; blocking.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from agent.drivers.manifests.trust import ROOT_ALONE, Distrusted, Trust, reason
from agent.model.finding import Finding
from agent.model.images.credential import PULL_SECRET_KEYS
from agent.model.pods.source_folder import SOURCE_FOLDERS, SourceFolder

# What the API server takes: all values of one object together.
MOST_BYTES = 1 << 20
MOST_KEYS = 4096
MOST_LINKS = 8
# An atomic writer swaps this link; a look during which it changed is taken again.
DATA = "..data"
HIDDEN_KEYS = frozenset(PULL_SECRET_KEYS.values())
MOST_LOOKS = 5
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
KEPT = "its last good content stays valid"
LAYOUT = "a source is a directory NAMESPACE/NAME with one file per key"


class _Refused(Exception):
    """A key that is not read; the text says why."""


class SourceLook(msgspec.Struct):
    """What one walk found. `watched` are the directories in which a change would be news. Filled by the walk alone."""

    trust: Trust
    folders: dict[str, SourceFolder] = msgspec.field(default_factory=dict)
    problems: list[Finding] = msgspec.field(default_factory=list)
    watched: list[Path] = msgspec.field(default_factory=list)


def read_source_folders(directory: Path, before: Mapping[str, SourceFolder], trust: Trust = ROOT_ALONE) -> SourceLook:
    """All of them by path; of what cannot be listed now, those that `before` has."""
    look = SourceLook(trust)
    try:
        with suppress(FileNotFoundError):
            trust.check(directory.stat())
    except Distrusted:
        # Whoever reads the manifests of this directory says so.
        look.folders.update(before)
        return look
    for top, kind in SOURCE_FOLDERS.items():
        for namespace in _below(directory / top, look, before):
            place = directory / top / namespace
            for name in _below(place, look, before):
                _take(place / name, kind, look, before)
    return look


def is_shut(told: os.stat_result) -> bool:
    """Whether a directory lets nobody in but root."""
    return not (told.st_mode & stat.S_IXOTH or (told.st_mode & stat.S_IXGRP and told.st_gid))


def is_exposed(told: os.stat_result) -> bool:
    """Whether others than root may read a file."""
    return bool(told.st_mode & stat.S_IROTH or (told.st_mode & stat.S_IRGRP and told.st_gid))


def _below(place: Path, look: SourceLook, before: Mapping[str, SourceFolder]) -> list[str]:
    """Names in one of the upper levels, which have nothing but directories."""
    try:
        with _opened(place, look.trust) as handle:
            found, strays = _directories(handle)
    except FileNotFoundError:
        return []
    except OSError as error:
        _keep(place, error, look, before)
        return []
    look.watched.append(place)
    look.problems += [Finding(str(place / name), "", f"is not a directory; {LAYOUT}") for name in strays]
    return found


def _directories(handle: int) -> tuple[list[str], list[str]]:
    """Names of directories, and of everything else."""
    found: list[str] = []
    strays: list[str] = []
    for name in sorted(os.listdir(handle)):
        with suppress(FileNotFoundError):
            if not name.startswith("."):
                is_directory = stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
                (found if is_directory else strays).append(name)
    return found, strays


def is_key(name: str) -> bool:
    """Hidden files are somebody's work in progress, or the atomic writer's own; but pull secrets have such keys."""
    return not name.startswith(".") or name in HIDDEN_KEYS


def _take(place: Path, kind: str, look: SourceLook, before: Mapping[str, SourceFolder]) -> None:
    try:
        with _opened(place, look.trust) as handle:
            folder = _whole(handle, place, kind, look.trust)
    except FileNotFoundError:
        return
    except OSError as error:
        _keep(place, error, look, before)
        return
    look.watched.append(place)
    look.folders[str(place)] = folder


def _keep(place: Path, error: OSError, look: SourceLook, before: Mapping[str, SourceFolder]) -> None:
    """What cannot be listed is not taken for something that is not there."""
    look.problems.append(Finding(str(place), "", f"{reason(error)}; {KEPT}"))
    inside = f"{place}/"
    look.folders.update({path: one for path, one in before.items() if f"{path}/".startswith(inside)})


@contextmanager
def _opened(place: Path, trust: Trust) -> Iterator[int]:
    try:
        handle = os.open(place, DIRECTORY)
    except OSError as error:
        # The kernel's word for a link is "not a directory", which helps nobody who sees one.
        if place.is_symlink():
            raise OSError(error.errno, "it is a link, and links to directories are not followed here") from error
        raise
    try:
        trust.check(os.fstat(handle))
        yield handle
    finally:
        os.close(handle)


def _whole(handle: int, place: Path, kind: str, trust: Trust) -> SourceFolder:
    """One source, looked at again when it was swapped meanwhile."""
    for _ in range(MOST_LOOKS):
        version = _version(handle)
        folder = _read(handle, place, kind, trust)
        if version == _version(handle):
            break
    return folder


def _version(handle: int) -> str:
    try:
        return os.readlink(DATA, dir_fd=handle)
    except OSError:
        return ""


def _read(handle: int, place: Path, kind: str, trust: Trust) -> SourceFolder:
    keys = sorted(name for name in os.listdir(handle) if is_key(name))
    values: dict[str, bytes] = {}
    problems: list[Finding] = []
    left, exposed = MOST_BYTES, ""
    if len(keys) > MOST_KEYS:
        problems.append(Finding(str(place), "", f"has {len(keys)} keys; at most {MOST_KEYS} are read; {KEPT}"))
        keys = []
    for key in keys:
        try:
            values[key], is_open = _key(handle, key, left, trust)
        except (_Refused, OSError) as error:
            text = str(error) if isinstance(error, _Refused) else reason(error)
            if not isinstance(error, FileNotFoundError) or (place / key).is_symlink():
                problems.append(Finding(str(place / key), "", f"{text}; {KEPT}"))
        else:
            left -= len(values[key])
            exposed = exposed or (key if is_open else "")
    is_private = any(is_shut(path.stat()) for path in (place, *place.parents[:3]))
    return SourceFolder(
        kind=kind,
        namespace=place.parent.name,
        name=place.name,
        path=str(place),
        values=values,
        problems=tuple(problems),
        exposed=str(place / exposed) if exposed and not is_private else "",
    )


def _key(handle: int, key: str, most_bytes: int, trust: Trust) -> tuple[bytes, bool]:
    """The content of one file, and whether others may read it."""
    file = _inside(handle, key, MOST_LINKS, trust)
    try:
        told = os.fstat(file)
        trust.check(told)
        if not stat.S_ISREG(told.st_mode):
            raise _Refused("is a directory; a key is a file" if stat.S_ISDIR(told.st_mode) else "is no regular file")
        with os.fdopen(file, "rb", closefd=False) as source:
            content = source.read(most_bytes + 1)
    finally:
        os.close(file)
    if len(content) > most_bytes:
        size = max(told.st_size, len(content))
        raise _Refused(f"has {size} bytes; all keys of one source may have {MOST_BYTES} together")
    return content, is_exposed(told)


def _inside(top: int, path: str, links: int, trust: Trust) -> int:
    """A descriptor of a path below `top`, step by step; the caller closes it. `O_NONBLOCK`: a pipe holds nobody up."""
    words = Path(path).parts
    handle = os.dup(top)
    for place, word in enumerate(words):
        try:
            trust.check(os.fstat(handle), "a directory on the way")
            if stat.S_ISLNK(os.stat(word, dir_fd=handle, follow_symlinks=False).st_mode):
                return _through(top, words, place, os.readlink(word, dir_fd=handle), links, trust)
            only = 0 if place == len(words) - 1 else os.O_DIRECTORY
            below = os.open(word, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | only, dir_fd=handle)
        finally:
            os.close(handle)
        handle = below
    return handle


def _through(top: int, words: tuple[str, ...], place: int, target: str, links: int, trust: Trust) -> int:
    """Where a link leads, reckoned from the directory that it stands in, and then the rest of the way."""
    if target.startswith("/") or ".." in Path(target).parts:
        raise _Refused(f"is a link to {target}, outside of its source; only links inside it are followed")
    if not links:
        raise _Refused("is a link in a chain of links without end")
    try:
        return _inside(top, str(Path(*words[:place], target, *words[place + 1 :])), links - 1, trust)
    except FileNotFoundError as error:
        raise _Refused(f"is a link to {target}, which does not exist") from error
