# SPDX-License-Identifier: Apache-2.0
"""One run of kepctl: what its common flags said, and how it fails. Imports nothing heavy."""

import os
from glob import glob
from pathlib import Path

import msgspec

from agent.model.exit_codes import FAILURE, USAGE

TOO_LATE = "no answer in time; --timeout allows more"
DEFAULT_SOCKET = "/run/kepd/kepd.sock"
OTHER_SOCKETS = "/run/kepd-*/kepd.sock"


class CommandFailed(Exception):
    """A command cannot do what was asked. The text says why and what would help."""

    def __init__(self, text: str, exit_code: int = FAILURE, reason: str = "") -> None:
        """`reason` is the daemon's word for it."""
        super().__init__(text)
        self.exit_code = exit_code
        self.reason = reason


def content_of(path: Path) -> bytes:
    """Of a file that the user named."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be read: {error.strerror}", USAGE) from error


class Session(msgspec.Struct, frozen=True, kw_only=True):
    endpoint: str | None = None
    timeout_s: float = 10.0
    color: str = "auto"
    debug: bool = False
    namespace: str = ""
    """What `-n` says."""

    def sockets(self) -> list[str]:
        given = self.endpoint or os.environ.get("KEPD_ENDPOINT")
        if given:
            return [given.removeprefix("unix://")]
        others = sorted(glob(OTHER_SOCKETS))  # noqa: PTH207  # pathlib costs more to say the same
        return [path for path in (DEFAULT_SOCKET, *others) if _may_be_there(path)] or [DEFAULT_SOCKET]


def _may_be_there(path: str) -> bool:
    """Of what this user may not look at, the call says that it is closed."""
    try:
        return Path(path).exists()
    except PermissionError:
        return True
