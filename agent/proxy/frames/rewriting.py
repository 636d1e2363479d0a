# SPDX-License-Identifier: Apache-2.0
"""An answer that is changed on its way, message by message.

A message beyond the limit passes unchanged, for the runtime may not be allowed to send its rest before what it sent so
far has been confirmed.
"""

from collections.abc import Callable

from agent.proxy.frames.layout import MESSAGE_HEAD_BYTES, framed

# Half of the smallest window a stream begins with.
MOST_WAITING_BYTES = 32 << 10


class Rewriting:
    def __init__(self) -> None:
        self.has_given_up = False
        self._waiting = bytearray()

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
        if stop > MOST_WAITING_BYTES:
            self.has_given_up = True
            out += self._waiting
            self._waiting.clear()
        return bytes(out), more_bytes

    def _first_end(self) -> int:
        if len(self._waiting) < MESSAGE_HEAD_BYTES:
            return MESSAGE_HEAD_BYTES
        return MESSAGE_HEAD_BYTES + int.from_bytes(self._waiting[1:MESSAGE_HEAD_BYTES], "big")
