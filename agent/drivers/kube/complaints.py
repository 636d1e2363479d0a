# SPDX-License-Identifier: Apache-2.0
"""Which objects of a resource cannot be read, so that each is reported once. Each follower owns one."""

from collections.abc import Iterable

from agent.drivers.kube.resource import Malformed, ObjectKey


class UnreadableObjects:
    def __init__(self) -> None:
        self._reported: dict[ObjectKey, str] = {}

    def is_new(self, malformed: Malformed) -> bool:
        """Whether to say it. A deletion is always news."""
        if malformed.is_gone:
            self._reported.pop(malformed.key, None)
            return True
        is_known = self._reported.get(malformed.key) == malformed.text
        self._reported[malformed.key] = malformed.text
        return not is_known

    def settle(self, key: ObjectKey) -> None:
        if self._reported:
            self._reported.pop(key, None)

    def keep_only(self, keys: Iterable[ObjectKey]) -> None:
        """After a new list: these are all that are unreadable."""
        self._reported = {key: self._reported[key] for key in keys if key in self._reported}
