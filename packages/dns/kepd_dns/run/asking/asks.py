# SPDX-License-Identifier: Apache-2.0
"""One question to one server, and what both ways of asking need of whoever asks."""

from typing import Protocol

import msgspec

from kepd_dns.upstreams.addresses import Server
from kepd_dns.upstreams.health import ServerHealth
from kepd_dns.wire.question import Question

NOT_OPEN = -1


class Ask(msgspec.Struct, eq=False):
    """`flight` is the asker's own. `section` is the question as it was spelled."""

    server: Server
    health: ServerHealth
    flight: object
    question: Question
    section: bytes
    has_options: bool
    started_s: float
    is_done: bool = False
    is_spelled: bool = False
    number: int = NOT_OPEN
    """Of its socket, if it has one of its own."""


class Asker(Protocol):
    def answered(self, ask: Ask, data: bytes, now_s: float) -> None:
        """A message whose id is that of the question. The clock is read once for all that are read at once."""

    def failed(self, ask: Ask, reason: str) -> None:
        """No answer will come: `refused`, `closed`, `spoofed`, `network`."""
