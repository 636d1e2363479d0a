# SPDX-License-Identifier: Apache-2.0
"""The ledger of flow control of one direction of a connection: every byte of DATA goes through it.

Invariant: what the sender may send is at every moment what it could send if the two ends spoke directly, plus the debt;
and nothing is sent to the receiver that it has no room for. HTTP/2 counts every byte of DATA, padding included, for its
stream and its connection, and gives it back by WINDOW_UPDATE once it is consumed.

- Passed: the far end consumes it, and its credit passes on.
- Held back: nothing yet. The sender may need its window for the rest of the message, or for other calls, so it gets it
  in advance. That is a debt: when the bytes go on at last, the receiver's credit for them is not passed on.
- Dropped, or removed by a change: never seen by the far end, so credited here, first against the debt.
- Added by a change: a debt, for the receiver will credit what the sender never sent.

While there is a debt the sender's window may exceed the receiver's room. What finds no room waits in a queue, one for
each stream, and goes on piece by piece with the receiver's credits. Whoever writes a block of headers of a stream asks
`is_waiting` before, for it must not overtake the stream's data.

Why both windows end where they began: the debt is what the sender was given less what it sent, plus what the receiver
got less what it credited. Once nothing waits and the receiver has credited all, it can only be 0.

Owns: room, debts, queues. Never: writes to a socket; credits for the sender leave by `give`.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from agent.proxy.frames.layout import END_STREAM, FIRST_LARGEST_FRAME, HEAD_BYTES, data_frame, data_of, window_frame

CONNECTION = 0
FIRST_WINDOW = 65535
# What one sender may be given in advance. A sender that would need more waits for what it has sent.
MOST_ADVANCED_BYTES = 32 << 20
# SETTINGS of one end that the other has not confirmed. Ends change theirs a few times in a connection's life.
MOST_UNCONFIRMED = 64
# Below it no piece goes on but the last one: a receiver that credits each at once would get them byte by byte.
LEAST_PIECE_BYTES = 4096


class Waiting(msgspec.Struct):
    """What a stream has for the receiver as soon as there is room."""

    content: bytearray
    is_last: bool = False


def flow_bytes(frames: Iterable[bytes]) -> int:
    return sum(len(one) - HEAD_BYTES for one in frames)


class FlowControl:
    def __init__(self, give: Callable[[bytes], None]) -> None:
        self._give = give
        self._room = FIRST_WINDOW
        self._debts: dict[int, int] = {}
        self._queue: dict[int, Waiting] = {}
        self._stream_rooms: dict[int, int] = {}
        """Credits less what was sent, without the window that each begins with."""
        self.first_window = self._first_window = FIRST_WINDOW
        """What a stream may send before its first credit."""
        self._announced: list[int | None] = []

    def __repr__(self) -> str:
        waiting = {stream: len(one.content) for stream, one in self._queue.items()}
        return f"Ledger(room={self._room}, debts={self._debts}, waiting={waiting})"

    # bytes on their way to the receiver

    def carry(self, stream: int, whole: bytes) -> bytes | None:
        """What goes on of a frame of DATA. None: it passes as it is."""
        size = len(whole) - HEAD_BYTES
        own = self._stream_rooms.get(stream)
        is_scarce = self._debts or self._queue or (own is not None and own + self.first_window < size)
        if is_scarce and not self._has_room(stream, size):
            return self._cut(stream, whole)
        self._room -= size
        if own is not None:
            self._stream_rooms[stream] = own - size
        return None

    def carry_all(self, stream: int, frames: Sequence[bytes]) -> bytes:
        """What goes on of frames that waited elsewhere; the receiver may take smaller ones than when they came."""
        out = []
        for one in frames:
            is_large = len(one) - HEAD_BYTES > FIRST_LARGEST_FRAME
            replaced = self._cut(stream, one) if is_large else self.carry(stream, one)
            out.append(one if replaced is None else replaced)
        return b"".join(out)

    def _cut(self, stream: int, whole: bytes) -> bytes:
        content = data_of(whole[4], whole[HEAD_BYTES:])
        self.resize(stream, HEAD_BYTES + len(content) - len(whole))
        return self.push(stream, content, is_last=bool(whole[4] & END_STREAM))

    def push(self, stream: int, content: bytes, *, is_last: bool = False) -> bytes:
        """Bytes of a stream in place of those that came; what goes on now, the rest waits."""
        self.wait(stream, content, is_last=is_last)
        return self.pump()

    def wait(self, stream: int, content: bytes, *, is_last: bool = False) -> None:
        if content or is_last:
            waiting = self._queue.setdefault(stream, Waiting(bytearray()))
            waiting.content += content
            waiting.is_last |= is_last

    def pump(self) -> bytes:
        """What there is room for by now."""
        return b"".join([frame for stream in list(self._queue) for frame in self._pieces(stream, self._queue[stream])])

    def _pieces(self, stream: int, waiting: Waiting) -> Iterable[bytes]:
        content, position, size = waiting.content, 0, len(waiting.content)
        least = self.least_piece
        while position < size:
            room = min(self._room_of(stream), FIRST_LARGEST_FRAME, size - position)
            if room < min(least, size - position):
                break
            piece = bytes(content[position : position + room])
            position += room
            self._spend(stream, room)
            yield data_frame(stream, piece, ends=waiting.is_last and position == size)
        del content[:position]
        if not content:
            if waiting.is_last and not position:
                yield data_frame(stream, b"", ends=True)
            del self._queue[stream]
            if waiting.is_last:
                self.end(stream, is_reset=False)

    def is_waiting(self, stream: int) -> bool:
        return stream in self._queue

    @property
    def least_piece(self) -> int:
        """Less is not worth a frame or a credit. A part of what the windows begin with, shared by all that may wait,
        so that nothing waits for ever because others wait too."""
        shared = FIRST_WINDOW // 4 // (1 + len(self._stream_rooms))
        return max(1, min(LEAST_PIECE_BYTES, self.first_window // 4, shared))

    @property
    def has_queue(self) -> bool:
        return bool(self._queue)

    def _room_of(self, stream: int) -> int:
        own = self._stream_rooms.get(stream)
        if own is None:
            return self._room
        return min(self._room, own + self.first_window)

    def _has_room(self, stream: int, size: int) -> bool:
        return stream not in self._queue and self._room_of(stream) >= size

    def _spend(self, stream: int, size: int) -> None:
        self._room -= size
        if stream in self._stream_rooms:
            self._stream_rooms[stream] -= size

    # what the sender is owed, or owes

    def advance(self, stream: int, count: int) -> None:
        """Credit for `count` bytes of a stream that are held back; of none: the connection's alone."""
        if count <= 0 or self._debts.get(CONNECTION, 0) + count > MOST_ADVANCED_BYTES:
            return
        for owner in dict.fromkeys((CONNECTION, stream)):
            self._debts[owner] = self._debts.get(owner, 0) + count
            self._give(window_frame(owner, count))

    def resize(self, stream: int, more: int) -> None:
        """Content of a stream grew by `more` bytes on its way, or shrank if negative."""
        for owner in (CONNECTION, stream):
            if more > 0:
                self._debts[owner] = self._debts.get(owner, 0) + more
            elif more < 0:
                self._owe(owner, -more)

    def drop(self, count: int) -> None:
        """Bytes of a stream that has ended go nowhere. The stream itself needs no credit any more."""
        if count > 0:
            self._owe(CONNECTION, count)

    def _owe(self, owner: int, count: int) -> None:
        """Set off against what was given before; only the rest is a credit."""
        debt = self._debts.pop(owner, 0)
        if debt > count:
            self._debts[owner] = debt - count
        elif debt < count:
            self._give(window_frame(owner, count - debt))

    # what the receiver says

    def credited(self, stream: int, count: int) -> int:
        """The receiver takes `count` bytes more; how much of that is the sender's."""
        if stream == CONNECTION:
            self._room += count
        elif stream in self._stream_rooms:
            self._stream_rooms[stream] += count
        if not self._debts:
            return count
        debt = self._debts.pop(stream, 0)
        if debt > count:
            self._debts[stream] = debt - count
        return max(0, count - debt)

    def announced(self, first_window: int | None) -> bool:
        """The receiver's SETTINGS are on their way; None: they say nothing of the window a stream begins with. Until
        the sender confirms them the receiver may go by the old ones or the new ones. False: too many."""
        self._announced.append(first_window)
        self._choose_window()
        return len(self._announced) <= MOST_UNCONFIRMED

    def confirmed(self) -> None:
        if self._announced and (first_window := self._announced.pop(0)) is not None:
            self._first_window = first_window
        self._choose_window()

    def _choose_window(self) -> None:
        self.first_window = min(one for one in (*self._announced, self._first_window) if one is not None)

    # streams

    def begin(self, stream: int) -> None:
        self._stream_rooms[stream] = 0

    def end(self, stream: int, *, is_reset: bool) -> None:
        """A stream is over; the connection's debts stay. What waits goes nowhere if it ended by a reset."""
        if is_reset and (waiting := self._queue.pop(stream, None)) is not None:
            self.drop(len(waiting.content))
        if stream not in self._queue:
            self._stream_rooms.pop(stream, None)
            if self._debts:
                self._debts.pop(stream, None)
