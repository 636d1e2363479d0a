# SPDX-License-Identifier: Apache-2.0
"""Greedy callers at each door: what another user and a liveness probe see while one does its worst.

A real containerd, and a kepd with the planes proxy and images. Each greedy caller has sixteen connections, starts anew
whatever is ended, and is of the lowest level that its door takes: a member of the read group, or root at the socket of
the CRI proxy. The other user calls GetNode a hundred times a second at most. Ratios are to the same without greed.
"""

import tempfile
from pathlib import Path

from bench.daemon import free_port
from tests.greed.greedy import DOORS
from tests.greed.witness import Doors, Seen, open_doors
from tests.lab import Lab

Row = tuple[str, float, str, str]
IDLE_S, GREED_S = 5.0, 20.0
SEVEN = ("window", "ping", "calls", "lists", "watches", "connects", "calls given up")
MIB = 1 << 20


def rows(kind: str, seen: Seen, idle: Seen, most_ms: float) -> list[Row]:
    return [
        (f"{kind}: another user's GetNode", seen.p99_s * 1000, "ms p99", f"≤ {most_ms:g}"),
        (f"{kind}: the same against idle", seen.p99_s / idle.p99_s, "×", "≤ 5"),
        (f"{kind}: /livez", seen.page_s * 1000, "ms most", "≤ 100"),
        (f"{kind}: memory", seen.grown_bytes / MIB, "MiB more", "≤ 64"),
        (f"{kind}: processor time of kepd", seen.cpu_s / GREED_S * 100, "% of a core", ""),
        (f"{kind}: calls of the other user that failed", len(seen.failed), "calls", "0"),
    ]


def measured(doors: Doors) -> list[Row]:
    idle = doors.watch(IDLE_S)
    found: list[Row] = [("nobody is greedy: GetNode", idle.p99_s * 1000, "ms p99", "")]
    for door, kinds in DOORS.items():
        for kind in kinds:
            found += rows(f"{door}/{kind}", doors.watch(GREED_S, [f"{door}/{kind}"]), idle, 50)
    return found + rows("seven at once", doors.watch(GREED_S, [f"api/{kind}" for kind in SEVEN]), idle, 250)


def measure() -> list[Row]:
    """All rows."""
    with (
        Lab.start() as lab,
        tempfile.TemporaryDirectory(prefix="kg") as name,
        open_doors(Path(name), free_port(), lab.endpoint, "proxy", "images") as doors,
    ):
        return measured(doors)
