# SPDX-License-Identifier: Apache-2.0
"""Many packets with one call of the kernel, by recvmmsg and sendmmsg, which Python's sockets lack.

An answer costs as much time in calls and in texts of addresses as in all else, and where a call carries 64 packets a
third of it is saved. Memory is set aside once: a packet is a slot, whose address goes back to the kernel as it came.
Whoever reads slots does so before the next `receive` of the same family.
"""

import ctypes
import socket
import struct
import sys
from collections.abc import Mapping, Sequence

BATCH = 64
IN_BYTES, OUT_BYTES, NAME_BYTES = 2048, 1536, 32
# struct msghdr with the length behind it: name, its length, iovec, their number, control, its length, flags, length.
HEADER = struct.Struct("QIIQQQQiIII")
VECTOR = struct.Struct("QQ")
FLAT = HEADER.size // 4
LENGTH_AT = 14
_LIBC = ctypes.CDLL(None, use_errno=True)
NAME_SIZES: Mapping[int, int] = {socket.AF_INET: 16, socket.AF_INET6: 28}
HOST_AT: Mapping[int, tuple[int, int]] = {socket.AF_INET: (4, 8), socket.AF_INET6: (8, 24)}


def _place(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Datagrams:
    """Of one family. `sizes[FLAT * n + LENGTH_AT]` is what packet n has; `ports[16 * n + 1]` is its port as the network
    has it; an answer is written into `out` at its slot, with its length and where its address lies."""

    def __init__(self, family: int) -> None:
        self.family, self.name_size = family, NAME_SIZES[family]
        begin, end = HOST_AT[family]
        self.packets = bytearray(BATCH * IN_BYTES)
        self.names = bytearray(BATCH * NAME_BYTES)
        self.out = bytearray(BATCH * OUT_BYTES)
        self._out_names = bytearray(BATCH * NAME_BYTES)
        self._vectors, self._headers = bytearray(BATCH * VECTOR.size), bytearray(BATCH * HEADER.size)
        self._out_vectors, self._out_headers = bytearray(BATCH * VECTOR.size), bytearray(BATCH * HEADER.size)
        self.name_places = [_place(self.names) + NAME_BYTES * one for one in range(BATCH)]
        self._out_places = [_place(self._out_names) + NAME_BYTES * one for one in range(BATCH)]
        for one in range(BATCH):
            self._lay_out(one)
        packets, names, to = memoryview(self.packets), memoryview(self.names), memoryview(self._out_names)
        self.views = [packets[IN_BYTES * one : IN_BYTES * (one + 1)] for one in range(BATCH)]
        self.hosts = [names[NAME_BYTES * one + begin : NAME_BYTES * one + end] for one in range(BATCH)]
        self._names = [names[NAME_BYTES * one : NAME_BYTES * one + self.name_size] for one in range(BATCH)]
        self._to = [to[NAME_BYTES * one : NAME_BYTES * one + self.name_size] for one in range(BATCH)]
        self.ports = names.cast("H")
        self.sizes = memoryview(self._headers).cast("I")
        self.out_sizes = memoryview(self._out_vectors).cast("Q")
        self.out_places = memoryview(self._out_headers).cast("Q")
        self._first, self._first_out = _place(self._headers), _place(self._out_headers)

    def _lay_out(self, one: int) -> None:
        vectors, out_vectors = _place(self._vectors), _place(self._out_vectors)
        VECTOR.pack_into(self._vectors, VECTOR.size * one, _place(self.packets) + IN_BYTES * one, IN_BYTES)
        VECTOR.pack_into(self._out_vectors, VECTOR.size * one, _place(self.out) + OUT_BYTES * one, 0)
        for headers, place, first in (
            (self._headers, self.name_places[one], vectors),
            (self._out_headers, self._out_places[one], out_vectors),
        ):
            fields = (place, self.name_size, 0, first + VECTOR.size * one, 1, 0, 0, 0, 0, 0, 0)
            HEADER.pack_into(headers, HEADER.size * one, *fields)

    def receive(self, number: int, most: int) -> int:
        """Packets of a socket, which does not block; 0 where there are none."""
        found: int = _LIBC.recvmmsg(number, ctypes.c_void_p(self._first), most, socket.MSG_DONTWAIT, None)
        return max(0, found)

    def name(self, slot: int) -> bytes:
        return self._names[slot].tobytes()

    def put(self, batch: Sequence[tuple[bytes, bytes | bytearray]]) -> None:
        """Answers to whom their names say, at the first slots for sending."""
        out, sizes, places, own_places, to = self.out, self.out_sizes, self.out_places, self._out_places, self._to
        at = 0
        for slot, (name, text) in enumerate(batch):
            size = len(text)
            to[slot][:] = name
            places[8 * slot] = own_places[slot]
            out[at : at + size] = text
            sizes[2 * slot + 1] = size
            at += OUT_BYTES

    def send(self, number: int, count: int) -> list[int]:
        """The first slots; what went wrong, by its number. Those behind one that fails go out all the same."""
        faults = []
        at = 0
        while at < count:
            place = ctypes.c_void_p(self._first_out + HEADER.size * at)
            sent = _LIBC.sendmmsg(number, place, count - at, socket.MSG_DONTWAIT)
            if sent <= 0:
                faults.append(ctypes.get_errno())
            at += max(1, sent)
        return faults


def text_of(name: bytes) -> str:
    """The address that a name of the kernel has."""
    family = int.from_bytes(name[:2], sys.byteorder)
    begin, end = HOST_AT[family]
    text = socket.inet_ntop(family, name[begin:end])
    scope = int.from_bytes(name[24:28], sys.byteorder) if family == socket.AF_INET6 else 0
    return f"{text}%{scope}" if scope else text
