# SPDX-License-Identifier: Apache-2.0
"""What the CRI proxy tells people: calls per method, and what it holds now."""

import msgspec


class MethodReport(msgspec.Struct, frozen=True, kw_only=True):
    """One method since the process began. Times are upper bounds of histogram buckets."""

    name: str
    calls: int
    failures: int
    added_p50_s: float
    added_p99_s: float
    holds: int
    held_s: float


class HoldReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is held: a call of a kubelet, or all pulls from a registry. `ends_in_s` is None where only an event ends
    it."""

    id: str
    method: str
    pod: str = ""
    container: str = ""
    reason: str
    waits_for: tuple[str, ...] = ()
    held_s: float
    ends_in_s: float | None
    why: str = ""


class ProxyReport(msgspec.Struct, frozen=True, kw_only=True):
    socket: str
    link: str
    connections: int
    pods: int
    masks: int
    is_recovered: bool
    queues_pulls: bool
    """False: pulls pass without queueing; `note` says why."""
    note: str
    methods: tuple[MethodReport, ...]
    holds: tuple[HoldReport, ...]
