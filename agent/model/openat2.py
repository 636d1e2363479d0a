# SPDX-License-Identifier: Apache-2.0
"""openat2, for which Python has no name: the only call that says how a path may be resolved. Blocking."""

import ctypes
import os

# The same everywhere.
OPENAT2 = 437
NO_MOUNTS, NO_MAGIC, NO_LINKS, BENEATH = 0x01, 0x02, 0x04, 0x08

_LIBC = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    """`struct open_how`."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_within(handle: int, name: str, flags: int, resolve: int) -> int:
    """Open from a directory. Raises OSError: EXDEV and ELOOP for what `resolve` forbids, ENOSYS where the kernel or the
    filter of a unit has no such call."""
    how = _How(flags, 0, resolve)
    opened: int = _LIBC.syscall(OPENAT2, handle, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how))
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return opened
