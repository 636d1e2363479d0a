# SPDX-License-Identifier: Apache-2.0
"""A directory of manifests in memory."""

import asyncio
from collections.abc import AsyncIterator, Mapping

__all__ = ["FakeManifestDirectory"]


class FakeManifestDirectory:
    """The test writes with `put`."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self._files = dict(files or {})
        self._changed = asyncio.Event()

    def put(self, path: str, content: bytes | None) -> None:
        """Write a file, or remove it."""
        if content is None:
            self._files.pop(path, None)
        else:
            self._files[path] = content
        self._changed.set()

    async def snapshots(self) -> AsyncIterator[Mapping[str, bytes]]:
        """As the driver."""
        last: Mapping[str, bytes] | None = None
        while True:
            if self._files != last:
                last = dict(self._files)
                yield last
            self._changed.clear()
            await self._changed.wait()
