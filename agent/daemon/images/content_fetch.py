# SPDX-License-Identifier: Apache-2.0
"""Images fetched without being unpacked: from their registry into containerd, in a namespace of our own.

Owns: the way of the bytes, and the lease that holds them for a day; a later pull finds them and only unpacks.
Never: makes an image of them. One that is not unpacked would look present to whoever lists images (IMG-F05).
Source of behaviour: IMG-F04.
"""

import asyncio
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from agent.drivers.clock.driver import SystemClock
from agent.drivers.containerd.driver import Containerd, Source, Take
from agent.drivers.registry.errors import ProbeFailed
from agent.model.image_credential import Credential
from agent.model.runtime_error import NotFound, RuntimeCallFailed

if TYPE_CHECKING:
    from agent.drivers.registry.images import OpenedImage, RegistryImages

__all__ = ["CONTENT_NAMESPACE", "ContentFetch"]

log = structlog.get_logger(plane="images")

CONTENT_NAMESPACE = "kepd"
PREFIX = "kepd-content-"
EXPIRE_LABEL = "containerd.io/gc.expire"
HELD_S = 86400.0
AT_ONCE = 3


class ContentFetch:
    """`store` is containerd in the namespace of our own. `images` is made when it is first needed."""

    def __init__(self, images: Callable[[], "RegistryImages"], store: Containerd, *, clock: SystemClock) -> None:
        self._images = images
        self._store = store
        self._clock = clock

    async def fetch(self, reference: str, credential: Credential | None) -> int:
        """Have all that an image is made of, held for a day from now; its size. Raises RuntimeCallFailed."""
        await self._tidy()
        before = await self._leases(reference)
        lease = f"{_prefix(reference)}{int(self._clock.wall_s())}"
        if lease not in before:
            expires = datetime.fromtimestamp(self._clock.wall_s() + HELD_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            await self._store.create_lease(lease, {EXPIRE_LABEL: expires})
        try:
            # The first import of what speaks HTTP takes longer than the event loop may stand still.
            images = await asyncio.to_thread(self._images)
            image = await images.open(reference, credential)
            fetched = await self._write_all(image, lease)
        except ProbeFailed as error:
            raise RuntimeCallFailed("Fetch", f"content of {reference}: {error}") from None
        # What an earlier lease held is in this one, so giving it up throws nothing away.
        for old in before:
            if old != lease:
                await self._give_up(old)
        log.info("image_content_fetched", image=reference, size_bytes=image.size_bytes, fetched_bytes=fetched)
        return image.size_bytes

    async def drop(self, reference: str) -> None:
        """Hold it no longer. Raises RuntimeCallFailed."""
        for lease in await self._leases(reference):
            await self._give_up(lease)

    async def _write_all(self, image: "OpenedImage", lease: str) -> int:
        turns = asyncio.Semaphore(AT_ONCE)

        async def blob(digest: str, size_bytes: int) -> int:
            async def source(offset: int, take: Take) -> None:
                await image.read(digest, offset, take)

            async with turns:
                return await self._store.write_blob(digest, size_bytes, source, lease)

        fetched = 0
        for digest, content in image.documents:
            fetched += await self._store.write_blob(digest, len(content), _of(content), lease)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(blob(*one), name="content-blob") for one in image.blobs]
        except ExceptionGroup as errors:
            raise _first(errors) from None
        return fetched + sum(task.result() for task in tasks)

    async def _tidy(self) -> None:
        """The runtime ignores leases past their time, and keeps them."""
        now = datetime.fromtimestamp(self._clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for lease, labels in (await self._store.list_leases()).items():
            if lease.startswith(PREFIX) and labels.get(EXPIRE_LABEL, now) < now:
                await self._give_up(lease)

    async def _leases(self, reference: str) -> list[str]:
        prefix = _prefix(reference)
        return [lease for lease in await self._store.list_leases() if lease.startswith(prefix)]

    async def _give_up(self, lease: str) -> None:
        try:
            await self._store.delete_lease(lease)
        except NotFound:
            log.debug("image_content_lease_gone", lease=lease)


def _of(content: bytes) -> Source:
    async def source(offset: int, take: Take) -> None:
        await take(content[offset:])

    return source


def _prefix(reference: str) -> str:
    return f"{PREFIX}{hashlib.sha256(reference.encode()).hexdigest()[:16]}-"


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
