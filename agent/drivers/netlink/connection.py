# SPDX-License-Identifier: Apache-2.0
"""A netlink socket to netfilter: requests with a deadline, and their answers.

Every call blocks up to its deadline and belongs into the executor of one driver.
"""

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator

import msgspec

from agent.drivers.netlink.attributes import ACK, DUMP, HEADER, REQUEST, Answer, attributes, message

OpenSocket = Callable[[], socket.socket]

_NETLINK_NETFILTER = 12
_SOL_NETLINK = 270
_CAP_ACK, _EXT_ACK = 10, 11
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_SEND_BYTES = 1 << 28
_SOCKET_BYTES = 32
_RECEIVE_BYTES = 1 << 23
_ERROR, _DONE = 2, 3
_INTERRUPTED = 0x10
_OFFSET_ATTRIBUTE = 2


def open_socket() -> socket.socket:
    """A socket in the network namespace of the calling thread."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
    opened.bind((0, 0))
    return opened


class NetlinkSilent(Exception):
    """No answer in time, or a lost one: what was asked for may have happened."""


class NetlinkFailure(msgspec.Struct, frozen=True):
    """The kernel refused: which message, and where in it if it says so."""

    errno: int
    sequence: int
    offset: int = 0


class Dump(msgspec.Struct, frozen=True):
    """Answers to a question for all there is. If it is not whole, things changed while the kernel told them."""

    answers: tuple[Answer, ...]
    is_whole: bool


class NetlinkConnection:
    """One socket, one request at a time."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._sequence = 1
        self._buffer = bytearray(1 << 18)
        self._block = b""
        # The forced sizes take CAP_NET_ADMIN over the first namespace; the others are cut to what everybody may have.
        for option, forced, size in (
            (socket.SO_SNDBUF, _SO_SNDBUFFORCE, _SEND_BYTES), (socket.SO_RCVBUF, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        ):  # fmt: skip
            if not _prefer(opened, socket.SOL_SOCKET, forced, size):
                _prefer(opened, socket.SOL_SOCKET, option, size)
        for option in (_CAP_ACK, _EXT_ACK):
            _prefer(opened, _SOL_NETLINK, option, 1)

    @property
    def port_id(self) -> int:
        """By which the kernel names us in its notifications."""
        return int(self._socket.getsockname()[0])

    @property
    def most_bytes(self) -> int:
        """Of one batch: what is larger the kernel refuses with EMSGSIZE."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - _SOCKET_BYTES

    def close(self) -> None:
        self._socket.close()

    def take_sequence(self, count: int = 1) -> int:
        """The first of so many numbers for messages. Answers to earlier requests are told by theirs."""
        first = self._sequence
        self._sequence = (first + count) & 0x7FFFFFFF
        return first

    def transact(self, data: bytes, first: int, last: int, deadline_s: float) -> NetlinkFailure | None:
        """Send a batch whose message `last` asks for an acknowledgement."""
        deadline = time.monotonic() + deadline_s
        self._send(data, deadline)
        while True:
            for kind, _, sequence, begin, end in self._receive(deadline):
                if kind != _ERROR or not first <= sequence <= last + 1:
                    continue
                failure = self._failure(sequence, begin, end)
                if failure is not None or sequence == last:
                    return failure

    def call(self, kind: int, family: str, payload: bytes, deadline_s: float) -> NetlinkFailure | None:
        """One message with an acknowledgement."""
        asked = self.take_sequence()
        return self.transact(message(kind, REQUEST | ACK, asked, family, payload), asked, asked, deadline_s)

    def ask(self, kind: int, family: str, payload: bytes, deadline_s: float) -> Answer:
        """One message with one answer. Raises OSError with the errno."""
        deadline = time.monotonic() + deadline_s
        asked = self.take_sequence()
        self._send(message(kind, REQUEST, asked, family, payload), deadline)
        while True:
            for answer, _, sequence, begin, end in self._receive(deadline):
                if sequence == asked and answer == _ERROR:
                    raise OSError(self._code(begin, end) or errno.EPROTO, "netfilter refused to answer")
                if sequence == asked:
                    return self._block, begin + 4, end

    def dump(self, kind: int, family: str, payload: bytes, deadline_s: float) -> Dump:
        """Every answer to a question for all there is. Raises OSError with the errno."""
        answers: list[Answer] = []
        is_whole = True
        for answer, is_cut in self.stream(kind, family, payload, deadline_s):
            is_whole = is_whole and not is_cut
            answers.append(answer)
        return Dump(tuple(answers), is_whole)

    def stream(self, kind: int, family: str, payload: bytes, deadline_s: float) -> Iterator[tuple[Answer, bool]]:
        """The same one by one, each with whether things changed meanwhile; the last one is empty.

        Whoever stops before that has to close the connection: the kernel has more to tell.
        """
        deadline = time.monotonic() + deadline_s
        asked = self.take_sequence()
        self._send(message(kind, REQUEST | DUMP, asked, family, payload), deadline)
        while True:
            for answer, flags, sequence, begin, end in self._receive(deadline):
                if sequence != asked:
                    continue
                if answer in (_DONE, _ERROR):
                    code = self._code(begin, end)
                    if code or answer == _ERROR:
                        raise OSError(code or errno.EPROTO, "netfilter refused to answer")
                    if flags & _INTERRUPTED:
                        yield (b"", 0, 0), True
                    return
                yield (self._block, begin + 4, end), bool(flags & _INTERRUPTED)

    def _failure(self, sequence: int, begin: int, end: int) -> NetlinkFailure | None:
        code = self._code(begin, end)
        if code == 0:
            return None
        offset = 0
        # After the code comes the header of the message in question, then what the kernel has to say about it.
        for kind, at, stop in attributes(self._block, begin + 20, end):
            if kind == _OFFSET_ATTRIBUTE and stop - at == 4:
                (offset,) = struct.unpack_from("=I", self._block, at)
        return NetlinkFailure(code, sequence, offset)

    def _code(self, begin: int, end: int) -> int:
        """The errno at the begin of an error or of the end of a dump."""
        return -int(struct.unpack_from("=i", self._block, begin)[0]) if end - begin >= 4 else 0

    def _send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            self._socket.sendto(data, (0, 0))
        except TimeoutError as error:
            raise NetlinkSilent("the kernel accepted no message in time") from error

    def _receive(self, deadline: float) -> Iterator[tuple[int, int, int, int, int]]:
        """Type, flags, sequence, begin and end of each message of the next datagram, which becomes `_block`."""
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            size = self._socket.recv_into(self._buffer)
        except TimeoutError as error:
            raise NetlinkSilent("the kernel gave no answer in time") from error
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            raise NetlinkSilent("an answer of the kernel was lost (ENOBUFS)") from error
        block = self._block = bytes(memoryview(self._buffer)[:size])
        at = 0
        while at + HEADER.size <= size:
            length, kind, flags, sequence, _ = HEADER.unpack_from(block, at)
            if length < HEADER.size:
                return
            yield kind, flags, sequence, at + HEADER.size, min(at + length, size)
            at += (length + 3) & ~3


def _prefer(opened: socket.socket, level: int, option: int, value: int) -> bool:
    """Whether it was taken."""
    try:
        opened.setsockopt(level, option, value)
    except OSError:
        return False
    return True
