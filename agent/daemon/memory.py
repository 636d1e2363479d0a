# SPDX-License-Identifier: Apache-2.0
"""Memory that a large piece of work leaves behind, back to the system.

Owns: the one call that does it. What is alive after the first sync stays for long, so the collector need not look at
it again and again (STY-36).
Never: runs on its own; whoever finished something large calls it once.
"""

import ctypes
import gc

__all__ = ["settle_memory"]


def settle_memory() -> None:
    """Collect what is dead, exempt what lives, give free pages back where the C library can."""
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
