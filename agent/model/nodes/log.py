# SPDX-License-Identifier: Apache-2.0
"""What may be asked of the logs of the node's services, and what is answered."""

import msgspec


class NoSuchLog(Exception):
    """There is none that the reader may see."""


class LogRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Units of the journal, or one file. Times are microseconds of wall time. `boot` is an offset or an id; None and
    empty values were not given."""

    units: tuple[str, ...] = ()
    file: str = ""
    since_us: int | None = None
    until_us: int | None = None
    tail: int | None = None
    follow: bool = False
    boot: str = ""
    grep: str = ""
    ignore_case: bool = False
    priority: int | None = None
    output: str = ""
    rotated: bool = False


class LogReader(msgspec.Struct, frozen=True):
    """Who reads. Root reads every unit and file; others what the configuration gives them."""

    uid: int
    is_root: bool


class ListedFile(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int
    changed_s: float


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """Whole lines. The last part says so, and `cut` by what the answer was ended, empty = it is complete."""

    lines: bytes = b""
    is_last: bool = False
    cut: str = ""


class LogSource(msgspec.Struct, frozen=True, kw_only=True):
    """A unit or a file. What is not known is not there."""

    name: str
    kind: str
    size_bytes: int | None = None
    last_at_s: float | None = None
