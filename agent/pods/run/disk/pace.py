# SPDX-License-Identifier: Apache-2.0
"""How a walk goes through what a tenant may have filled: so many entries a second, behind everybody else's reads, and
not for ever."""

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

ENTRIES_A_SECOND = 20_000
LONGEST_S = 600.0
WORTH_WAITING_S = 0.02
# Of linux/ioprio.h.
OF_THREAD, IDLE, USUAL = 1, 3 << 13, 0
NUMBERS = {"x86_64": 251, "aarch64": 30}


class DiskPace:
    """`went` is called after some entries, in the thread that walks."""

    def __init__(self, now_s: Callable[[], float] = monotonic, wait: Callable[[float], None] = sleep) -> None:
        self._now_s, self._wait = now_s, wait
        self._began_s = now_s()
        self._entries = 0
        self._is_stopped = False

    def went(self, entries: int) -> None:
        self._entries += entries
        ahead_s = self._entries / ENTRIES_A_SECOND - (self._now_s() - self._began_s)
        if ahead_s > WORTH_WAITING_S and not self._is_stopped:
            self._wait(ahead_s)

    @property
    def is_over(self) -> bool:
        """Whoever makes files faster than they are counted keeps no walk from its end."""
        return self._is_stopped or self._now_s() - self._began_s > LONGEST_S

    def stop(self) -> None:
        """For the thread that waits for another one's walk."""
        self._is_stopped = True


@contextmanager
def idle_reads() -> Iterator[None]:
    """Reads of this thread come after those of all others, where the disk's scheduler has an order."""
    _set_class(IDLE)
    try:
        yield
    finally:
        _set_class(USUAL)


def _set_class(value: int) -> None:
    """A unit may forbid it; then reads are as usual."""
    number = NUMBERS.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, OF_THREAD, 0, value)
