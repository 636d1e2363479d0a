# SPDX-License-Identifier: Apache-2.0
"""Bandwidth as a schedule: when may the next bytes have passed.

Owns: the arithmetic of a rate that one connection has for itself or all connections share.
Never: reads the clock or sleeps; the caller passes the time and waits.
"""

__all__ = ["Pace", "chunk_bytes"]

SMALLEST_CHUNK = 512
LARGEST_CHUNK = 256 * 1024
CHUNKS_PER_S = 20


class Pace:
    """A line that passes bytes one after the other at a rate, which may change between two calls."""

    def __init__(self) -> None:
        self._busy_until_s = 0.0

    def reserve(self, size_bytes: int, rate_bytes_s: int | None, now_s: float) -> float:
        """Take the next free time on the line; returns when the last of the bytes has passed."""
        if rate_bytes_s is None:
            return now_s
        self._busy_until_s = max(self._busy_until_s, now_s) + size_bytes / rate_bytes_s
        return self._busy_until_s


def chunk_bytes(*rates_bytes_s: int | None) -> int:
    """A piece that takes about 50 ms at the slowest rate: an even flow, and few wake-ups at high rates."""
    rates = [rate for rate in rates_bytes_s if rate is not None]
    if not rates:
        return LARGEST_CHUNK
    return max(SMALLEST_CHUNK, min(LARGEST_CHUNK, min(rates) // CHUNKS_PER_S))
