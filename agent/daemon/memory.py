# SPDX-License-Identifier: Apache-2.0
"""The collector during a large piece of work, and the memory that such work leaves behind.

What is alive after the first sync stays for long, so the collector need not look at it again and again (STY-36).
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def resting_collector() -> Iterator[None]:
    """No collections: what is made now stays, and each one would walk all of it to find nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settle_memory() -> None:
    """Collect what is dead, exempt what lives, give free pages back where the C library can."""
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
