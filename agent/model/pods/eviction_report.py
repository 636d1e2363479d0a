# SPDX-License-Identifier: Apache-2.0
"""What may end pods on this node: how much of each thing is left, and who would go first."""

import msgspec


class EvictionSignal(msgspec.Struct, frozen=True, kw_only=True):
    """One threshold. Without `capacity` what is left is unknown; `met_since_s` is 0 while it is not met."""

    signal: str
    kind: str
    available: int = 0
    capacity: int = 0
    line: int = 0
    met_since_s: float = 0.0
    grace_s: float = 0.0
    message: str = ""


class EvictionCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """`rank` begins at 1 for each signal; 0 is who would not be chosen, and `why` says the reason."""

    signal: str
    namespace: str
    name: str
    rank: int = 0
    used: int = 0
    requested: int = 0
    priority: int = 0
    why: str = ""


class EvictionReport(msgspec.Struct, frozen=True, kw_only=True):
    is_on: bool
    message: str = ""
    conditions: tuple[str, ...] = ()
    signals: tuple[EvictionSignal, ...] = ()
    candidates: tuple[EvictionCandidate, ...] = ()
