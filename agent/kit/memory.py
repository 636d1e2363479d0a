# SPDX-License-Identifier: Apache-2.0
"""The interpreter during a large piece of work, the memory that such work leaves behind, and where it never goes.

What is alive after the first sync stays for long, so the collector need not look at it again and again.
"""

import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

M_ARENA_MAX = -8
"""Of malloc.h."""
HEAPS = 2


@contextmanager
def large_work() -> Iterator[None]:
    """No collections: what is made now stays, and each would walk all of it to find nothing. And short turns: a thread
    that writes to the kernel needs several, while another makes what is written next."""
    gc.disable()
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)
        gc.enable()


def forbid_core_files() -> None:
    """Memory holds credentials of registries. In a container no unit says so."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def share_heaps() -> None:
    """Two heaps of the C library for all threads, before there are any. It would make eight for each core, and what one
    thread freed in its own is of no use to the others: a process that runs for weeks spreads over all of them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, HEAPS)


def settle_memory() -> None:
    """Collect what is dead, exempt what lives, give free pages back where the C library can."""
    gc.collect()
    gc.freeze()
    give_back_pages()


def exempt_what_lives() -> None:
    """A look of the collector at all that is imported holds the loop for 40 ms, and finds nothing."""
    gc.freeze()


def give_back_pages() -> None:
    """Those that are free in the middle of a heap, too, which the C library keeps by itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
