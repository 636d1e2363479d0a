# SPDX-License-Identifier: Apache-2.0
"""Archives that a container wrote, unpacked so that nothing outside of one folder can be changed by them.

A container may be hostile, and its `tar` may be anything. So of names only those that stay below the folder count,
links are made only where they lead below it, devices and sockets never; nothing is written through a link, and nothing
gets an owner, or rights beyond those of a plain file.
"""

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from agent.cli.session import CommandFailed
from agent.model.finding import printable

COPY_BYTES = 256 << 10
FILE_MODE, FOLDER_MODE = 0o666, 0o777


def unpack(source: BinaryIO, root: str, target: Path) -> Iterator[str]:
    """Put what the archive has at `root` to where `target` is to be. Yields what it left out, with the reason.

    `root` is the last part of the path that was asked for; what is elsewhere in the archive was not asked for.
    """
    is_found = False
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                inner = _below(member.name, root)
                if inner is None:
                    yield f"{printable(member.name)}: it was not asked for"
                    continue
                is_found = True
                reason = _put(archive, member, target, inner)
                if reason:
                    yield f"{printable(member.name)}: {reason}"
    except tarfile.TarError as error:
        raise CommandFailed(f"what the container sent is no archive: {error}; does the image contain tar?") from error
    if not is_found:
        raise CommandFailed(f"the container sent nothing of {printable(root)}")


def _below(name: str, root: str) -> tuple[str, ...] | None:
    """The parts below `root`; None for what is not there."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] != root or any(part in ("..", "/") or "\x00" in part for part in parts):
        return None
    return parts[1:]


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, inner: tuple[str, ...]) -> str:
    """Why it was left out; empty if it was not. Each folder on the way is opened without following links."""
    if not (member.isreg() or member.isdir() or member.issym()):
        return "it is neither a file, nor a folder, nor a symbolic link"
    place = target.joinpath(*inner)
    folder = _opened_folder(target, inner)
    if folder is None:
        return "a link or a file is in its way"
    try:
        if member.isdir():
            return _make_folder(place.name, folder)
        if member.issym():
            return _make_link(member.linkname, inner, place.name, folder)
        _write_file(archive, member, place.name, folder)
    except OSError as error:
        raise CommandFailed(f"{place}: {error.strerror}") from error
    finally:
        os.close(folder)
    return ""


def _opened_folder(target: Path, inner: tuple[str, ...]) -> int | None:
    """The folder that holds it. The user's own path to the target may have links, what is below may not."""
    try:
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CommandFailed(f"{target.parent}: {error.strerror}") from error
    for part in (target.name, *inner)[: len(inner)]:
        try:
            # A folder may come after what is in it, or not at all.
            _make_folder(part, folder)
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            os.close(folder)
            return None
        os.close(folder)
        folder = deeper
    return folder


def _make_folder(name: str, folder: int) -> str:
    try:
        os.mkdir(name, FOLDER_MODE, dir_fd=folder)
    except FileExistsError:
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        return "" if is_folder else "a link or a file is in its way"
    return ""


def _make_link(leads_to: str, inner: tuple[str, ...], name: str, folder: int) -> str:
    """Only one that stays below the target, whatever stands on its way; others would lead later copies out."""
    depth = len(inner) - 1
    parts = PurePosixPath(leads_to).parts
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    if not inner or not parts or leads_to.startswith("/") or ups > depth or ".." in parts[ups:]:
        return f"a link to {printable(leads_to)} may lead out of the target"
    _make_way(name, folder)
    os.symlink(leads_to, name, dir_fd=folder)
    return ""


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, folder: int) -> None:
    _make_way(name, folder)
    mode = FILE_MODE | (member.mode & 0o111)
    made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
    content = archive.extractfile(member)
    with os.fdopen(made, "wb") as file:
        while content is not None and (data := content.read(COPY_BYTES)):
            file.write(data)


def _make_way(name: str, folder: int) -> None:
    """A file, or a link, that was there is replaced and never written into or through."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
