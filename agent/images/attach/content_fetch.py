# SPDX-License-Identifier: Apache-2.0
"""Images fetched without being unpacked: by containerd's Transfer service, into a namespace of our own.

A name holds what was fetched for a day; a later pull finds all of it and only unpacks.
Never: makes an image in the namespace of pods. One that is not unpacked would look present to whoever lists images.
Never speaks to a registry: containerd does, by its own hosts files.
"""

import re
from contextlib import suppress
from pathlib import Path

import structlog

from agent.drivers.containerd.driver import Containerd
from agent.drivers.cri.driver import CriRuntime
from agent.drivers.registry.address import default_base_url
from agent.images.access.mirrors import MirrorChain
from agent.images.run.node_images import read_chain
from agent.model.clock import Clock
from agent.model.images.credential import Credential
from agent.model.images.platform import ImagePlatform
from agent.model.images.reference import parse_reference
from agent.model.images.store import expiring, is_expired
from agent.model.runtime.error import NotFound, NotImplementedByRuntime, RuntimeCallFailed

log = structlog.get_logger(plane="images")

CONTENT_NAMESPACE = "kepd"
CHILD_LABELS = "containerd.io/gc.ref.content"
HELD_S = 86400.0
TRANSFER_SINCE, MIRRORS_SINCE = (1, 7), (2, 0)
NEEDED = "content without its image needs the Transfer service of containerd 1.7 or later"

DEFAULT_FOLDER = Path("/etc/containerd/certs.d")
ASK_AGAIN_S = 60.0


class RegistryHosts:
    """The folder of the runtime's hosts files, which the runtime tells, and what they say of a registry.

    `folder` is the default one until the runtime has told another. Files are read anew for each question.
    """

    def __init__(self, runtime: CriRuntime, *, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self.folder = DEFAULT_FOLDER

    async def run(self) -> None:
        while True:
            try:
                told = await self._runtime.hosts_folder()
                self.folder = Path(told) if told else DEFAULT_FOLDER
            except RuntimeCallFailed as error:
                log.debug("hosts_folder_not_told", error=error.details)
            await self._clock.sleep(ASK_AGAIN_S)

    def chain(self, registry: str) -> MirrorChain:
        return read_chain(self.folder, registry)

    def base_url(self, registry: str) -> str:
        """Where to ask a registry as the runtime does; empty where its hosts file says more than an address."""
        chain = self.chain(registry)
        return chain.only_url if chain.source else default_base_url(registry)


class ContentFetch:
    """`store` is containerd in the namespace of our own."""

    def __init__(self, store: Containerd, platform: ImagePlatform, hosts: RegistryHosts, *, clock: Clock) -> None:
        self._store = store
        self._platform = platform
        self._hosts = hosts
        self._clock = clock

    async def obstacle(self, reference: str) -> str:
        """Why it cannot be fetched, or nothing. Raises RuntimeCallFailed."""
        try:
            version = await self._store.version()
        except NotImplementedByRuntime:
            return f"{NEEDED}; this runtime is another"
        numbers = re.match(r"(\d+)\.(\d+)", version)
        found = (int(numbers[1]), int(numbers[2])) if numbers is not None else MIRRORS_SINCE
        if found < TRANSFER_SINCE:
            return f"{NEEDED}; this is {version}"
        source = self._hosts.chain(parse_reference(reference).asked_host).source if found < MIRRORS_SINCE else ""
        return f"the Transfer service of containerd {version} does not read {source}; 2.0 does" if source else ""

    async def fetch(self, reference: str, credential: Credential | None, server: str) -> int:
        """Have all that an image is made of, held for a day from now; its size. Raises RuntimeCallFailed."""
        await self._tidy()
        try:
            await self._store.fetch_content(
                reference,
                self._platform,
                hosts_folder=str(self._hosts.folder),
                labels=expiring(self._clock.wall_s() + HELD_S),
                credential=credential,
                server=server,
            )
        except NotImplementedByRuntime as error:
            raise NotImplementedByRuntime(error.method, f"{NEEDED}: {error.details}") from error
        size_bytes = await self._size(reference)
        log.info("image_content_fetched", image=reference, size_bytes=size_bytes)
        return size_bytes

    async def drop(self, reference: str) -> None:
        """Hold it no longer. Raises RuntimeCallFailed."""
        with suppress(NotFound):
            await self._store.delete_image(reference)

    async def _tidy(self) -> None:
        """containerd 1.7 ignores that a name's time is over."""
        for record in await self._store.image_records():
            if is_expired(record.labels, self._clock.wall_s()):
                await self.drop(record.name)

    async def _size(self, reference: str) -> int:
        """All blobs that the name holds: containerd links each to its parts by labels."""
        waiting = [one.digest for one in await self._store.image_records() if one.name == reference]
        sizes: dict[str, int] = {}
        while waiting:
            digest = waiting.pop()
            blob = await self._store.blob_info(digest) if digest not in sizes else None
            if blob is not None:
                sizes[digest] = blob.size_bytes
                waiting += [value for key, value in blob.labels.items() if key.startswith(CHILD_LABELS)]
        return sum(sizes.values())
