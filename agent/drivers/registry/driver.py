# SPDX-License-Identifier: Apache-2.0
"""How large an image is, asked at its registry.

Never: downloads a blob, asks a mirror, retries, or raises for what a registry does: whoever asks schedules pulls and
can do without. Source of behaviour: OCI distribution spec. The owner calls `close`.
"""

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from agent.drivers.registry.address import default_base_url
from agent.drivers.registry.errors import ProbeFailed, RegistryFailed
from agent.drivers.registry.manifest_size import choose_entry, total_bytes
from agent.model.clock import Clock
from agent.model.images.credential import Credential
from agent.model.images.manifest import read_document
from agent.model.images.platform import node_platform
from agent.model.images.reference import ImageReference, ReferenceInvalid, parse_reference

if TYPE_CHECKING:
    import aiohttp

log = structlog.get_logger(plane="images")

REST_S = 60.0
MOST_DOCUMENTS = 3  # an index may point to an index


class RegistrySizes:
    """Sizes of images for a machine. A registry without `base_url` is the runtime's to ask, and has no sizes here."""

    def __init__(
        self,
        *,
        machine: str,
        clock: Clock,
        base_url: Callable[[str], str] = default_base_url,
        connect_s: float = 3.0,
        probe_s: float = 5.0,
    ) -> None:
        self._platform = node_platform(machine)
        self._clock = clock
        self._base_url = base_url
        self._connect_s, self._probe_s = connect_s, probe_s
        self._rests: dict[str, float] = {}
        self._client: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def close(self) -> None:
        """End all connections; who asks afterwards hears None."""
        self._is_closed = True
        if self._client is not None:
            await self._client.close()

    async def size_bytes(self, reference: str, credential: Credential | None) -> int | None:
        """Compressed bytes of config and layers for this machine; None if the registry did not say."""
        try:
            parsed = parse_reference(reference)
        except ReferenceInvalid:
            return self._failed("", "the name of the image cannot be read")
        if self._is_closed or self._rests.get(parsed.asked_host, 0.0) > self._clock.now_s():
            return None
        base_url = self._base_url(parsed.asked_host)
        if not base_url:
            return self._failed(parsed.asked_host, "a hosts.toml of the runtime says where it is asked")
        try:
            async with asyncio.timeout(self._probe_s):
                return await self._ask(base_url, parsed, credential)
        except TimeoutError:
            self._rest(parsed.asked_host)
            return self._failed(parsed.asked_host, f"no answer within {self._probe_s:g} s")
        except ProbeFailed as error:
            if isinstance(error, RegistryFailed):
                self._rest(parsed.asked_host)
            return self._failed(parsed.asked_host, str(error))

    async def _ask(self, base_url: str, reference: ImageReference, credential: Credential | None) -> int:
        # The first import takes longer than the event loop may stand still.
        await asyncio.to_thread(importlib.import_module, "agent.drivers.registry.visit")
        from agent.drivers.registry.visit import Visit, open_client

        if self._is_closed:
            raise ProbeFailed("the probe is being stopped")
        if self._client is None:
            self._client = open_client(self._connect_s)
        visit = Visit(self._client, base_url, reference.asked_path, credential)
        wanted = reference.digest or reference.effective_tag
        for _ in range(MOST_DOCUMENTS):
            document = read_document(await visit.manifest(wanted))
            if document is None:
                raise ProbeFailed("the answer is neither a manifest with sizes nor an index")
            size_bytes = total_bytes(document)
            if size_bytes is not None:
                return size_bytes
            wanted = choose_entry(document, self._platform)
        raise ProbeFailed("the index points to indexes only")

    def _rest(self, registry: str) -> None:
        """It failed, and is left alone for a while; others that did are forgotten when their time is over."""
        now_s = self._clock.now_s()
        self._rests = {name: until_s for name, until_s in self._rests.items() if until_s > now_s}
        self._rests[registry] = now_s + REST_S

    @staticmethod
    def _failed(registry: str, reason: str) -> None:
        log.debug("image_size_probe_failed", registry=registry, reason=reason, v=3)
