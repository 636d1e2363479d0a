# SPDX-License-Identifier: Apache-2.0
"""The identity of this installation: a random id in the state directory, by which we know our own sandboxes."""

import re
import secrets
from pathlib import Path

from agent.daemon.configuration import write_atomically

__all__ = ["instance_id"]

WELL_FORMED = re.compile(r"[0-9a-f]{32}\Z")


def instance_id(state_directory: Path) -> str:
    """The id, made at the first start. One that is damaged is made anew: better no claim than a wrong one."""
    path = state_directory / "instance"
    try:
        known = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        known = ""
    if WELL_FORMED.match(known):
        return known
    fresh = secrets.token_hex(16)
    write_atomically(path, f"{fresh}\n".encode())
    return fresh
