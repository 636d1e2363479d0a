# SPDX-License-Identifier: Apache-2.0
"""An answer that is changed on its way, message by message.

Its sender gets credit in advance for what waits (credit.py), so a message may be as large as gRPC lets it be. Larger
ones pass unchanged.
"""

from collections.abc import Callable

from agent.proxy.frames.layout import MESSAGE_HEAD_BYTES, framed

# What a kubelet's and containerd's gRPC take.
MOST_WAITING_BYTES = (16 << 20) + MESSAGE_HEAD_BYTES


class Rewriting:
    def __init__(self) -> None:
        self.has_given_up = False
        self._waiting = bytearray()
        self._advanced_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)

    def take(self, content: bytes, change: Callable[[bytes], bytes]) -> tuple[bytes, int]:
        """What goes on now, and how many bytes that is more than came for it."""
        self._waiting += content
        out, more_bytes = bytearray(), 0
        while (stop := self._first_end()) <= len(self._waiting):
            message = bytes(self._waiting[MESSAGE_HEAD_BYTES:stop])
            changed = framed(change(message)) if self._waiting[0] == 0 else bytes(self._waiting[:stop])
            more_bytes += len(changed) - stop
            out += changed
            del self._waiting[:stop]
            self._advanced_bytes = 0
        if stop > MOST_WAITING_BYTES:
            self.has_given_up = True
            out += self.flush()
        return bytes(out), more_bytes

    def to_advance(self, least_bytes: int) -> int:
        """How much of what waits is new since the last answer; nothing before it is `least_bytes`."""
        new_bytes = len(self._waiting) - self._advanced_bytes
        if new_bytes < least_bytes:
            return 0
        self._advanced_bytes = len(self._waiting)
        return new_bytes

    def flush(self) -> bytes:
        """What waits, as it came: the answer ends, or is too large."""
        content = bytes(self._waiting)
        self._waiting.clear()
        return content

    def _first_end(self) -> int:
        if len(self._waiting) < MESSAGE_HEAD_BYTES:
            return MESSAGE_HEAD_BYTES
        return MESSAGE_HEAD_BYTES + int.from_bytes(self._waiting[1:MESSAGE_HEAD_BYTES], "big")
