# SPDX-License-Identifier: Apache-2.0
"""A token bucket as a value: full at first, one token per start, refilled by time.

Owns: its arithmetic.
Never: waits; an empty bucket returns when the next token will be there.
Source of behaviour: IMG-S19.
"""

from dataclasses import dataclass, replace
from typing import Self

from agent.images.queue.rules import Rate

__all__ = ["TokenBucket"]


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Tokens as they were at a moment."""

    tokens: float
    at_s: float

    @classmethod
    def full(cls, rate: Rate, now_s: float) -> Self:
        return cls(rate.burst, now_s)

    def refilled(self, rate: Rate, now_s: float) -> Self:
        """What is in it now; never more than the burst."""
        return replace(self, tokens=min(self.tokens + (now_s - self.at_s) * rate.per_s, rate.burst), at_s=now_s)

    def without_one(self) -> Self:
        return replace(self, tokens=self.tokens - 1)

    def next_token_s(self, rate: Rate) -> float:
        return self.at_s + (1 - self.tokens) / rate.per_s
