# SPDX-License-Identifier: Apache-2.0
"""The archive of a backup: a tar, packed by gzip, and encrypted by the program `age` where there are recipients."""

import gzip
import io
import os
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath

import msgspec

from agent.drivers.atomic_files import FILE_MODE, write_file
from agent.host.backup.contents import ABOUT, MOST_BYTES, About, is_kept, place_of, read_about
from agent.objects.run.database import DATABASE

AGE = "age"
SEALED = b"age-encryption.org/"
MOST_MEMBERS = 200_000
MOST_TOTAL_BYTES = 1 << 30
RUN_S = 600


class BackupFailed(Exception):
    """Says what, where, and what to do."""


class Member(msgspec.Struct, frozen=True):
    root: str
    path: PurePosixPath
    mode: int
    content: bytes = b""


def found_below(roots: Mapping[str, Path]) -> Iterator[Member]:
    """Every file to keep. Sockets, pipes and links are left out: they hold no settings."""
    for name, root in roots.items():
        nested = [other for other in roots.values() if other != root and other.is_relative_to(root)]
        for path in sorted(_kept_below(name, root, nested)):
            relative = PurePosixPath(path.relative_to(root))
            if not path.is_file() or path.is_symlink():
                continue
            # A kepd that runs may remove one at any moment.
            with suppress(FileNotFoundError):
                status = path.stat()
                if status.st_size > MOST_BYTES:
                    most = f"a file of kepd has {MOST_BYTES >> 20} at most"
                    raise BackupFailed(f"{path} has {status.st_size >> 20} MiB; {most}")
                yield Member(name, relative, status.st_mode & 0o777, path.read_bytes())


def _kept_below(name: str, root: Path, nested: Collection[Path]) -> Iterator[Path]:
    """What pods have may be as large as it likes, and is not looked through."""
    for above, folders, files in os.walk(root):
        place = Path(above)
        kept = {one for one in (*folders, *files) if is_kept(name, PurePosixPath((place / one).relative_to(root)))}
        folders[:] = [one for one in folders if one in kept and place / one not in nested]
        yield from (place / one for one in files if one in kept)


def remembered(state: Path) -> Iterator[Member]:
    """The database as it is at one moment, also while kepd writes it: a copy of its file alone may be torn."""
    file = state / DATABASE
    if file.exists():
        try:
            with (
                closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(":memory:")) as copy,
            ):
                source.backup(copy)
                yield Member("state", PurePosixPath(DATABASE), FILE_MODE, copy.serialize())
        except sqlite3.Error as error:
            raise BackupFailed(f"{file}: {error}; start kepd once, which puts a torn database aside") from error


def write_archive(path: Path, about: About, members: Sequence[Member], recipients: Sequence[str]) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, mode, content in (
            (ABOUT, 0o600, msgspec.json.format(msgspec.json.encode(about)) + b"\n"),
            *((f"{one.root}/{one.path}", one.mode, one.content) for one in members),
        ):
            made = tarfile.TarInfo(name)
            made.size, made.mode = len(content), mode
            tar.addfile(made, io.BytesIO(content))
        if tar.offset > MOST_TOTAL_BYTES:
            raise BackupFailed(f"{tar.offset >> 20} MiB are more than the {MOST_TOTAL_BYTES >> 20} that restore takes")
    content = packed.getvalue()
    if recipients:
        content = _age(*(word for one in recipients for word in ("--recipient", one)), given=content)
    write_file(path, content)


def read_archive(path: Path, identity: Path | None) -> tuple[About, list[Member]]:
    """All of it, looked through, before anything is written."""
    content = path.read_bytes()
    if content.startswith(SEALED):
        if identity is None:
            raise BackupFailed(f"{path} is encrypted; --identity FILE names the key, as age-keygen wrote it")
        content = _age("--decrypt", "--identity", str(identity), given=content)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
            first = tar.next()
            if first is None or first.name != ABOUT:
                raise ValueError(f"it does not begin with {ABOUT}, so kepd did not write it")
            return read_about(_bytes(tar, first)), [_member(tar, one) for one in _rest(tar)]
    except (ValueError, tarfile.TarError, EOFError, OSError) as error:
        raise BackupFailed(f"{path}: {error}; nothing was changed") from error


def _rest(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for count, one in enumerate(iter(tar.next, None)):
        if count >= MOST_MEMBERS:
            raise ValueError(f"it has more than {MOST_MEMBERS} files")
        yield one


def _member(tar: tarfile.TarFile, one: tarfile.TarInfo) -> Member:
    return Member(*place_of(one.name), one.mode & 0o777, _bytes(tar, one))


def _bytes(tar: tarfile.TarFile, one: tarfile.TarInfo) -> bytes:
    # What was read before counts too: a small archive may unpack to anything.
    file = tar.extractfile(one) if one.isfile() and one.offset_data + one.size <= MOST_TOTAL_BYTES else None
    if file is None:
        raise ValueError(f"{one.name!r} is no file, or the archive unpacks to more than {MOST_TOTAL_BYTES >> 20} MiB")
    return file.read()


def _age(*words: str, given: bytes) -> bytes:
    program = shutil.which(AGE)
    if program is None:
        raise BackupFailed("the program age is not installed here, which encrypts and decrypts; apt-get install age")
    try:
        done = subprocess.run([program, *words], input=given, capture_output=True, check=False, timeout=RUN_S)
    except subprocess.TimeoutExpired as error:
        raise BackupFailed(f"age did not end within {RUN_S} s; nothing was changed") from error
    if done.returncode:
        raise BackupFailed(f"age: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
