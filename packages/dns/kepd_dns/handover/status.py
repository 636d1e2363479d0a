# SPDX-License-Identifier: Apache-2.0
"""What kepd-dns says of itself over its socket: JSON behind a length of four bytes, one answer for each request."""

from typing import Literal

import msgspec

LARGEST = 16 << 20
LENGTH_BYTES = 4


class StatusRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`name` and `type` are for explain, `name` or `zone` for flush."""

    do: Literal["status", "explain", "flush", "reread"]
    name: str = ""
    type: str = "A"
    zone: str = ""


class AnswerCount(msgspec.Struct, frozen=True, array_like=True):
    protocol: str
    family: str
    zone: str
    type: str
    code: int
    source: str
    count: int


class Durations(msgspec.Struct, frozen=True):
    counts: tuple[int, ...]
    sum_s: float


class UpstreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    zone: str
    address: str
    protocol: str
    why: str = ""
    round_trip_s: float = 0.0
    is_up: bool = True
    is_loop: bool = False
    asked: int = 0
    failures: dict[str, int] = {}
    durations: Durations | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`number` is of the state, -1 without one; `faults` are for people."""

    instance: str
    pid: int
    started_s: float
    uptime_s: float
    number: int
    state_age_s: float
    error: str = ""
    addresses: tuple[str, ...] = ()
    answers: tuple[AnswerCount, ...] = ()
    durations: dict[str, Durations] = {}
    upstreams: tuple[UpstreamStatus, ...] = ()
    cache_bytes: int = 0
    negative_bytes: int = 0
    entries: int = 0
    negative_entries: int = 0
    evictions: int = 0
    negative_evictions: int = 0
    prefetches: int = 0
    merged: int = 0
    spoofed: int = 0
    limited: int = 0
    all_out: int = 0
    in_flight: int = 0
    overload: dict[str, int] = {}
    malformed: dict[str, int] = {}
    receive_drops: int = 0
    memory_bytes: int = 0
    own_services: int = 0
    top_names: tuple[tuple[str, int], ...] = ()
    top_sources: tuple[tuple[str, int], ...] = ()
    faults: tuple[str, ...] = ()
    bounds_s: tuple[float, ...] = ()


class Cached(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    code: int
    age_s: float
    left_s: float
    hits: int
    is_stale: bool
    records: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Of one question: whose it is, and what would be answered from what."""

    name: str
    zone: str
    kind: str
    code: int | None = None
    records: tuple[str, ...] = ()
    target: str = ""
    meant: str = ""
    """A name that a Service has, where this one is none and looks like it."""
    cached: tuple[Cached, ...] = ()
    upstreams: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    error: str = ""
    status: Status | None = None
    explanation: Explanation | None = None
    flushed: int = 0
    number: int = -1


def framed(what: StatusRequest | Reply) -> bytes:
    text = msgspec.json.encode(what)
    return len(text).to_bytes(LENGTH_BYTES, "big") + text
