# SPDX-License-Identifier: Apache-2.0
"""What there is to say of a node whose API server is away."""

import msgspec


class DeadEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`service` is the first that has it."""

    endpoint: str
    protocol: str
    node: str
    service: str
    why: str


class OutageReport(msgspec.Struct, frozen=True, kw_only=True):
    """`phase`: with server, alone or returning. Times are of the wall clock, 0: there is none."""

    mode: str
    phase: str = ""
    since_s: float = 0.0
    snapshot_s: float = 0.0
    """When the server last vouched for what the plane began with, where that was a snapshot."""
    lines: tuple[str, ...] = ()
    checked: int = 0
    dead: tuple[DeadEndpoint, ...] = ()
    dead_total: int = 0
