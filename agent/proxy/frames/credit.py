# SPDX-License-Identifier: Apache-2.0
"""The account of a connection's flow control, for bytes that do not pass from one end to the other as they came.

Invariant: at every moment each sender's window equals what it would be if the two ends spoke directly. HTTP/2 counts
every byte of DATA, padding included, for its stream and for its connection, and gets it back by WINDOW_UPDATE from
whoever consumed it. Bytes that pass are consumed, and so credited, by the far end. Three kinds are not:

- dropped: a request that was refused, the rest of an answer that was reset. The far end never sees them, so the proxy
  credits them itself, for the connection. Their stream has ended and needs nothing.
- removed: an answer that became shorter. Credited in the same way, for connection and stream.
- added: an answer that became longer. The client will credit bytes that the runtime never sent; they are taken off the
  next credit on its way.

Without this a refused call would shrink the window that all calls of a kubelet share, until none of them could send.

Owns: the debts. Never: writes to a socket.
"""

from collections.abc import Sequence

from agent.proxy.frames.layout import HEAD_BYTES, window_frame

CONNECTION = 0


def flow_bytes(frames: Sequence[bytes]) -> int:
    return sum(len(one) - HEAD_BYTES for one in frames)


def _credit_frame(stream: int, count: int) -> bytes:
    """A credit, or nothing where there is nothing to credit; an update by 0 would be an error."""
    return window_frame(stream, count) if count > 0 else b""


class Credit:
    """One per link, for the answers of the runtime; requests are only ever dropped, see `credit_frame`."""

    def __init__(self) -> None:
        self._added: dict[int, int] = {}

    @staticmethod
    def drop(count: int) -> bytes:
        """What to send back to whoever sent `count` bytes of a stream that has ended, and that go nowhere."""
        return _credit_frame(CONNECTION, count)

    def resize(self, stream: int, more: int) -> bytes:
        """What to send to the runtime for an answer that grew by `more` bytes, or shrank if negative."""
        out = b""
        for owner in (CONNECTION, stream):
            if more > 0:
                self._added[owner] = self._added.get(owner, 0) + more
            elif more < 0:
                out += self._give(owner, -more)
        return out

    def _give(self, owner: int, count: int) -> bytes:
        """Set off against what was added before; only the rest is a credit."""
        added = self._added.get(owner, 0)
        if added > count:
            self._added[owner] = added - count
        else:
            self._added.pop(owner, None)
        return _credit_frame(owner, count - added)

    def pass_on(self, stream: int, count: int) -> int:
        """How much of a credit of `count` bytes by the client is the runtime's."""
        added = self._added.pop(stream, 0)
        if added > count:
            self._added[stream] = added - count
        return max(0, count - added)

    def end(self, stream: int) -> None:
        """A stream is over; the connection's debts stay."""
        self._added.pop(stream, None)

    @property
    def has_debts(self) -> bool:
        """Whether any credit of the client must be looked at."""
        return bool(self._added)
