# SPDX-License-Identifier: Apache-2.0
"""Manifest files that kepd itself changes: each is there whole or not at all, with the mode and owner that it had."""

import os
from pathlib import Path

from agent.config.manifest_documents import read_objects, without
from agent.config.strict_yaml import UnreadableYaml
from agent.model.refused import Refused

FILE_MODE, SECRET_MODE = 0o640, 0o600


def take_out(path: str, key: tuple[str, str, str]) -> None:
    """Out of its file, which goes with its last object. Raises Refused where the rest cannot stay as it is."""
    file = Path(path)
    try:
        content = file.read_bytes()
        one = next((found for found in read_objects(path, content) if found.key == key), None)
        rest = without(path, content, one) if one is not None else content
    except FileNotFoundError:
        return
    except UnreadableYaml as error:
        raise Refused("precondition", f"{error.finding}; remove {key[0]} {key[2]} from that file") from error
    if rest:
        write_whole(file, rest, FILE_MODE)
    else:
        file.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, with the mode and owner that the file has."""
    place = Path(os.path.realpath(path))
    draft = place.with_name(f".{place.name[:200]}.draft")
    draft.unlink(missing_ok=True)
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, SECRET_MODE)) as target:
            target.write(content)
            try:
                there = place.stat()
                os.chown(target.fileno(), there.st_uid, there.st_gid)
                mode = there.st_mode & 0o7777
            except FileNotFoundError:
                pass
            os.fchmod(target.fileno(), mode)
            os.fsync(target.fileno())
        draft.rename(place)
    except OSError:
        # On a full disk half a draft would keep what little there is.
        draft.unlink(missing_ok=True)
        raise
