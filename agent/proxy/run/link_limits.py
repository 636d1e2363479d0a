# SPDX-License-Identifier: Apache-2.0
"""How much a connection may ask of the proxy: sizes, numbers, what all connections keep together, and its turn."""

import asyncio
from math import inf

from agent.model.allowance import CallerMeter, Share
from agent.proxy.run.call import ProxyCall

# Of one block: a request's hundred times what a kubelet sends; in trailers a runtime may tell a long story.
MOST_REQUEST_HEADERS, MOST_ANSWER_HEADERS = 64 << 10, 1 << 20
# Calls under way on one connection; a kubelet has some hundreds.
MOST_CALLS = 10_000
# Of one process: calls given up, each of which costs us more than its client (CVE-2023-44487), and frames that serve no
# call. One that sends more is read no further for a while, which a busy client hardly notices.
RESETS, OTHERS, CONNECTIONS = "calls given up", "frames without a call", "connections"
METERED = {RESETS: Share(1000, 200), OTHERS: Share(4000, 10_000), CONNECTIONS: Share(200, 50)}
# A shorter rest is not worth a timer.
LEAST_REST_S = 0.01
# What has come on all connections is taken for so long in one turn of the loop, then others have theirs.
TURN_S = 0.0015
# Requests beyond this pass unread; a kubelet sends 16 MiB at most, and the runtime says so to whoever sends more.
MOST_KEPT_BYTES = 16 << 20
# Of all calls of all clients that are read along; what finds no room passes unread.
MOST_KEPT_OF_ALL_BYTES = 64 << 20
# A request that may have to change is kept until it is whole, up to this size: half a stream's usual window.
MOST_WITHHELD_BYTES = 32 << 10
# Streams refused before their request had ended whose rest may still come. The rest of older ones goes to the runtime,
# which ignores it.
MOST_REFUSED_STREAMS = 1000


class Broken(Exception):
    """A peer breaks the protocol. `error` is HTTP/2's number."""

    def __init__(self, error: int, text: str) -> None:
        super().__init__(text)
        self.error = error


class BufferBudget:
    """What all links keep of the calls that they read along, and what their clients took."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        """`turn_s`: infinite where there is no loop."""
        self._turn_s = turn_s
        self._has_begun = False
        self.turn_ends_s = inf
        self.kept_bytes = 0
        self.meter = CallerMeter(METERED)

    def begin_turn(self, now_s: float) -> None:
        """With the first frames of a turn; what is called soon comes with the next."""
        if not self._has_begun and self._turn_s < inf:
            self._has_begun, self.turn_ends_s = True, now_s + self._turn_s
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._has_begun = False

    def keep(self, call: ProxyCall, more_bytes: int) -> bool:
        if call.kept_bytes > MOST_KEPT_BYTES or self.kept_bytes > MOST_KEPT_OF_ALL_BYTES:
            return False
        call.kept_bytes += more_bytes
        self.kept_bytes += more_bytes
        return True

    def leave(self, call: ProxyCall) -> None:
        self.kept_bytes -= call.kept_bytes
        call.kept_bytes = 0
