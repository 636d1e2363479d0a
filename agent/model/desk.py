# SPDX-License-Identifier: Apache-2.0
"""Work whose price a stranger names, given out of hand: it ends by its deadline, and nothing else waits for it."""

from collections.abc import Callable
from typing import Protocol

Work = Callable[[bytes], bytes]
"""A function of a module: pure, plain values in and out."""


class DeskFailed(Exception):
    """No answer: it took too long, or its process has ended. The text says which."""


class Desk(Protocol):
    async def ask(self, work: Work, given: bytes, deadline_s: float) -> bytes:
        """Raises DeskFailed."""


class SameProcess:
    """Where the work is known to be small, as in tests."""

    async def ask(self, work: Work, given: bytes, deadline_s: float) -> bytes:
        del deadline_s
        return work(given)
