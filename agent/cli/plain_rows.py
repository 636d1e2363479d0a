# SPDX-License-Identifier: Apache-2.0
"""Rows for what is no terminal: what tables need without click, rich and protobuf."""

import sys
from collections.abc import Sequence

from agent.model.finding import printable


def print_plain(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In columns as wide as their widest cell; no colour, nothing cut."""
    rows = [[printable(cell) for cell in row] for row in rows]
    # Without titles the rows stand alone.
    all_rows = [titles, *rows] if titles else rows
    widths = [max(len(cell) for cell in column) for column in zip(*all_rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in all_rows)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    sys.stdout.flush()
