# SPDX-License-Identifier: Apache-2.0
"""Pods that the control plane has given up: deleted, about to be, or ended by the node for good; a bounded number."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST = 1000


class EndingPods:
    """Told by whoever follows the pods of this node; read by whoever has to know why a container is stopped."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []
        self._uids: dict[str, None] = {}

    @contextmanager
    def followed_by(self, listener: Callable[[str], None]) -> Iterator[None]:
        """The listener hears of each pod until the end of the block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def note(self, uid: str) -> None:
        if uid in self._uids:
            return
        if len(self._uids) >= MOST:
            del self._uids[next(iter(self._uids))]
        self._uids[uid] = None
        for listener in self._listeners:
            listener(uid)

    def __contains__(self, uid: object) -> bool:
        return uid in self._uids
