# SPDX-License-Identifier: Apache-2.0
"""Rows for what is no terminal, and ages: what tables need without click, rich and protobuf."""

import sys
import time
from collections.abc import Sequence
from typing import Protocol

from agent.model.finding import printable


class Stamp(Protocol):
    @property
    def seconds(self) -> int: ...


def print_plain(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In columns as wide as their widest cell; no colour, nothing cut."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(titles, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (titles, *rows))
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    sys.stdout.flush()


def age(stamp: Stamp) -> str:
    """How long ago, as kubectl writes it."""
    return age_of(stamp, time.time())


def age_of(stamp: Stamp, now_s: float) -> str:
    if not stamp.seconds:
        return ""
    seconds = max(0, int(now_s - stamp.seconds))
    for limit, unit, length in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // length}{unit}"
    return f"{seconds // 86400}d"
