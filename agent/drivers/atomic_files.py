# SPDX-License-Identifier: Apache-2.0
"""A file that is there whole or not at all, also after a crash or a power cut. Blocking; failures are OSError."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def write_file(path: Path, content: bytes, *, is_durable: bool = True, mode: int = FILE_MODE) -> None:
    handle, draft = draft_beside(path)
    try:
        os.fchmod(handle, mode)
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            if is_durable:
                os.fsync(out.fileno())
        Path(draft).replace(path)
        if is_durable:
            sync_directory(path.parent)
    except BaseException as error:
        name_file(error, path)
        with suppress(OSError):
            Path(draft).unlink()
        raise


def name_file(error: BaseException, path: Path) -> None:
    """A disk that is full says so of a descriptor, which tells no one where."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)


def draft_beside(path: Path) -> tuple[int, str]:
    """The directory is nearly always there, so that looking for it first would cost more than it finds."""
    try:
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
