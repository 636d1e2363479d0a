# SPDX-License-Identifier: Apache-2.0
"""A question under way, and who waits for its answer."""

from collections.abc import Callable

import msgspec

from kepd_dns.run.asking.asks import Ask
from kepd_dns.upstreams.addresses import Server
from kepd_dns.wire.question import Question
from kepd_dns.zones.choice import Zone

Reply = Callable[["Waiter", bytes, int, str, float], None]
"""Hears the message, its code, where it is from (cache, stale, upstream or refused), and what time it is."""


class DnsClient(msgspec.Struct, frozen=True, gc=False):
    """Where a question came from. `send` takes the answer when it comes later, and `place`, which is the sender's."""

    source: str
    protocol: str
    family: str
    send: Callable[[bytes, bytes | bytearray], None]
    place: bytes = b""


class Waiter(msgspec.Struct, frozen=True, gc=False):
    """A question to us that waits for an answer to it."""

    question: Question
    client: DnsClient
    zone: str
    since_s: float
    reply: Reply


class UpstreamQuery(msgspec.Struct, eq=False):
    """`is_reliable`: the client came by TCP. `asked`: servers so far, `open`: those that have not answered."""

    key: bytes
    question: Question
    zone: Zone
    started_s: float
    is_reliable: bool
    waiters: list[Waiter] = []
    open: list[Ask] = []
    asked: tuple[Server, ...] = ()
    codes: tuple[int, ...] = ()
    hedge_s: float = 0.0
    slot: dict["UpstreamQuery", None] | None = None
    """In the wheel."""
    is_done: bool = False
    has_stale: bool = False
    is_plain: bool = False
    is_prefetch: bool = False
    is_crowded: bool = False
