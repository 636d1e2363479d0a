# SPDX-License-Identifier: Apache-2.0
"""A directory of manifests in memory."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from agent.kinds.registry import MANIFEST_KINDS
from agent.model.finding import Finding
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder
from agent.objects.admitting import NOTHING, admit
from agent.objects.reading import Reading, Readings
from agent.objects.wanted import Wanted


class FakeManifestDirectory:
    """The test writes with `put` and breaks with `fail`."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.readings: Sequence[Reading] = ()
        """Of the plane that hears of it."""
        self._files = dict(files or {})
        self._folders: dict[str, SourceFolder] = {}
        self._reasons: dict[str, str] = {}
        self._changed = asyncio.Event()

    def put(self, path: str, content: bytes | None) -> None:
        """Write a file, or remove it."""
        if content is None:
            self._files.pop(path, None)
        else:
            self._files[path] = content
        self._changed.set()

    def put_folder(self, path: str, folder: SourceFolder | None) -> None:
        """Make a source with a file per key, or remove it."""
        if folder is None:
            self._folders.pop(path, None)
        else:
            self._folders[path] = folder
        self._changed.set()

    def fail(self, path: str, reason: str) -> None:
        """From now on a file cannot be read, or the directory of many; an empty reason heals it."""
        self._reasons[path] = reason
        self._changed.set()

    async def news(self) -> AsyncIterator[Wanted]:
        last: ManifestSnapshot | None = None
        in_force = NOTHING
        while True:
            self._changed.clear()
            look = self._look(last)
            if look != last:
                last = look
                in_force = admit(look.files, look.folders, in_force, Readings(self.readings), MANIFEST_KINDS)
                yield Wanted(look, in_force)
            await self._changed.wait()

    async def settle(self) -> None:
        """Nothing outlives a test."""

    def _look(self, last: ManifestSnapshot | None) -> ManifestSnapshot:
        reasons = {path: reason for path, reason in self._reasons.items() if reason}
        problems = tuple(Finding(path, "", f"cannot be read: {reason}") for path, reason in reasons.items())
        known = last.files if last is not None else {}

        def is_hidden(path: str) -> bool:
            return any(path == broken or path.startswith(f"{broken}/") for broken in reasons)

        seen = {path: content for path, content in self._files.items() if not is_hidden(path)}
        kept = {path: content for path, content in known.items() if is_hidden(path)}
        unread = frozenset(path for path in reasons if not any(one.startswith(path) for one in kept))
        files = dict(sorted({**seen, **kept}.items()))
        return ManifestSnapshot(files, problems, unread, folders=dict(sorted(self._folders.items())))
