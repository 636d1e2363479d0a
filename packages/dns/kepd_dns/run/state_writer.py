# SPDX-License-Identifier: Apache-2.0
"""Writes the state for kepd-dns: whole at first and now and then, otherwise one line for each change."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import json

from kepd_dns.handover.state import (
    CHANGES_FILE,
    STATE_FILE,
    Change,
    ServiceName,
    Settings,
    Upstream,
    ZoneState,
    change_line,
    read_state,
)

MOST_CHANGES, MANY = 2000, 200
MODE = 0o644


class StateWriter:
    """`number` is that of the last line. Nothing is written before `begin`. Failures are OSError."""

    def __init__(self, directory: Path, wall_s: Callable[[], float]) -> None:
        self.directory = directory
        self._wall_s = wall_s
        self.number = 0
        self.written_s = 0.0
        self.settings = Settings()
        self.services: dict[str, ServiceName] = {}
        self.upstreams: tuple[Upstream, ...] = ()
        self.pods: tuple[tuple[str, str], ...] = ()
        self._lines = 0
        self._has_begun = False

    def begin(self, settings: Settings) -> None:
        """With a number that no earlier process had."""
        if not self._has_begun:
            try:
                self.number = read_state((self.directory / STATE_FILE).read_bytes()).number + MOST_CHANGES
            except (OSError, ValueError):
                self.number = int(self._wall_s()) & 0x3FFFFFFF
            self._has_begun = True
        self.settings = settings
        self._write_all()

    def put(self, service: ServiceName) -> bool:
        if self.services.get(service.key) == service:
            return False
        self.services[service.key] = service
        self._note(put=service)
        return True

    def put_all(self, services: Sequence[ServiceName]) -> bool:
        """Many are a new state, for a line of each would cost more."""
        changed = [one for one in services if self.services.get(one.key) != one]
        if len(changed) > MANY and self._has_begun:
            self.services.update((one.key, one) for one in changed)
            self._write_all()
            return True
        for one in changed:
            self.put(one)
        return bool(changed)

    def drop(self, key: str) -> bool:
        if self.services.pop(key, None) is None:
            return False
        self._note(drop=key)
        return True

    def replace(self, services: Iterable[ServiceName]) -> bool:
        """These and no others."""
        wanted = {one.key: one for one in services}
        changed = [self.drop(key) for key in [*self.services] if key not in wanted]
        changed += [self.put(one) for one in wanted.values()]
        return any(changed)

    def set_upstreams(self, upstreams: tuple[Upstream, ...]) -> bool:
        if upstreams == self.upstreams:
            return False
        self.upstreams = upstreams
        self._note(upstreams=upstreams)
        return True

    def set_pods(self, pods: tuple[tuple[str, str], ...]) -> bool:
        if pods == self.pods:
            return False
        self.pods = pods
        self._note(pods=pods)
        return True

    def _note(
        self,
        *,
        put: ServiceName | None = None,
        drop: str = "",
        upstreams: tuple[Upstream, ...] | None = None,
        pods: tuple[tuple[str, str], ...] | None = None,
    ) -> None:
        if not self._has_begun:
            return
        self.number += 1
        self._lines += 1
        if self._lines > MOST_CHANGES:
            self._write_all()
            return
        line = change_line(Change(number=self.number, put=put, drop=drop, upstreams=upstreams, pods=pods))
        with (self.directory / CHANGES_FILE).open("ab") as file:
            file.write(line)
        self.written_s = self._wall_s()

    def _write_all(self) -> None:
        self.number += 1
        self.written_s = self._wall_s()
        state = ZoneState(
            number=self.number,
            written_s=self.written_s,
            settings=self.settings,
            services=tuple(self.services.values()),
            upstreams=self.upstreams,
            pods=self.pods,
        )
        _replace(self.directory / STATE_FILE, json.encode(state))
        # Until this is written, what is there names another state, and a reader leaves it alone.
        _replace(self.directory / CHANGES_FILE, b"%d\n" % self.number)
        self._lines = 0


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, MODE)
        file.write(content)
    draft.replace(path)
