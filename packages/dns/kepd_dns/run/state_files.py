# SPDX-License-Identifier: Apache-2.0
"""Reads what the daemon wrote, and takes it over: the whole state, or the changes since."""

import os
from collections.abc import Callable
from pathlib import Path

from kepd_dns.handover.state import (
    CHANGES_FILE,
    STATE_FILE,
    Change,
    Gap,
    Settings,
    Upstream,
    ZoneState,
    read_changes,
    read_state,
)
from kepd_dns.zones.own import OwnZone, faults

LARGEST_STATE = 256 << 20


class StateFiles:
    """`number` is that of the last change that was taken; -1: there is no valid state."""

    def __init__(self, directory: Path, complain: Callable[[str], None]) -> None:
        self._directory, self._complain = directory, complain
        self.state: ZoneState | None = None
        self.number = -1
        self.own: OwnZone | None = None
        self.upstreams: tuple[Upstream, ...] = ()
        self.faults: list[str] = []
        self.error = "no state yet"
        self._seen: tuple[int, int, int] = (0, 0, 0)

    def looks_changed(self) -> bool:
        """By what the file system says; it costs two calls."""
        return self._stamp() != self._seen

    def _stamp(self) -> tuple[int, int, int]:
        try:
            state = os.stat(self._directory / STATE_FILE)  # noqa: PTH116
            changes = os.stat(self._directory / CHANGES_FILE)  # noqa: PTH116
        except OSError:
            return 0, 0, 0
        return state.st_ino, state.st_mtime_ns, changes.st_size

    def look(self) -> tuple[bool, tuple[Change, ...]]:
        """Whether the whole state is another one, and otherwise the changes that were taken."""
        self._seen = self._stamp()
        if self.state is not None:
            try:
                return False, self._follow()
            except (Gap, OSError):
                pass
        return self._begin(), ()

    def _begin(self) -> bool:
        for _ in range(3):
            try:
                state = read_state(self._content(STATE_FILE))
                break
            except FileNotFoundError:
                self.error = f"there is no {self._directory / STATE_FILE}"
                return False
            except (OSError, ValueError) as error:
                self.error = f"{self._directory / STATE_FILE}: {error}"
        else:
            self._complain(self.error)
            return False
        self.state, self.number, self.error = state, state.number, ""
        self.upstreams = state.upstreams
        settings = state.settings
        self.own = _own_zone(settings, state.number)
        self.faults = []
        if self.own is not None:
            for one in state.services:
                self.own.put(one)
                self.faults += [f"{one.key}: {text}" for text in faults(one)]
            self.own.set_pods(state.pods)
        try:
            self._follow()
        except (Gap, OSError) as error:
            self._complain(f"{self._directory / CHANGES_FILE}: {error}; the state before it is used")
        return True

    def _follow(self) -> tuple[Change, ...]:
        if self.state is None:
            return ()
        try:
            content = self._content(CHANGES_FILE)
        except FileNotFoundError:
            content = b""
        if read_number(content) not in (None, self.state.number):
            raise Gap("the changes are of another state")
        taken = []
        for change in read_changes(content.partition(b"\n")[2], self.number):
            self._take(change)
            taken.append(change)
        return tuple(taken)

    def _take(self, change: Change) -> None:
        self.number = change.number
        if change.upstreams is not None:
            self.upstreams = change.upstreams
        if self.own is not None:
            self.own.serial = change.number
            if change.put is not None:
                self.own.put(change.put)
                self.faults += [f"{change.put.key}: {text}" for text in faults(change.put)]
                del self.faults[:-100]
            if change.drop:
                self.own.drop(change.drop)
            if change.pods is not None:
                self.own.set_pods(change.pods)

    def _content(self, name: str) -> bytes:
        with (self._directory / name).open("rb") as file:
            return file.read(LARGEST_STATE)


def _own_zone(settings: Settings, number: int) -> OwnZone | None:
    if not settings.is_authoritative:
        return None
    return OwnZone(settings.zone, settings.addresses, number, is_whole=not settings.has_cluster)


def read_number(content: bytes) -> int | None:
    """Of the state that changes belong to, on their first line."""
    first = content.partition(b"\n")[0]
    return int(first) if first.isdigit() else None
