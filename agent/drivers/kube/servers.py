# SPDX-License-Identifier: Apache-2.0
"""Which of several API servers to ask.

It stays with a server as long as that one answers, and moves on when it does not; start is anywhere in the list, so
that the nodes of a cluster spread. Who saw a failure says on which server, so that two who saw the same one move on
once.
"""

from collections.abc import Sequence


class ServerRing:
    """The servers in order. The client owns the only one."""

    def __init__(self, servers: Sequence[str], luck: float = 0.0) -> None:
        if not servers:
            raise ValueError("at least one server is needed")
        self._servers = tuple(servers)
        self._at = int(luck * len(self._servers)) % len(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    def __repr__(self) -> str:
        return f"ServerRing(at={self.current} of {len(self)})"

    @property
    def current(self) -> str:
        return self._servers[self._at]

    def failed(self, server: str) -> None:
        """That one did not answer; the next is asked from now on."""
        if server == self.current:
            self._at = (self._at + 1) % len(self._servers)
