# SPDX-License-Identifier: Apache-2.0
"""Visits to registries: where each is asked, whose certificates count there, and the session behind all of them.

Owns: the session, made when it is first needed. The owner calls `close`.
"""

import asyncio
import importlib
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.drivers.registry.address import Trust, default_base_url, find_place
from agent.drivers.registry.errors import ProbeFailed
from agent.model.image_credential import Credential
from agent.model.image_reference import ImageReference

if TYPE_CHECKING:
    from agent.drivers.registry.session import RegistrySession
    from agent.drivers.registry.visit import Visit

__all__ = ["Visitors", "default_trust"]


def default_trust(_registry: str) -> Trust:
    """The machine's certificates."""
    return Trust()


class Visitors:
    """`base_url` and `trust` are asked for each visit, so a changed file counts at once."""

    def __init__(
        self,
        *,
        base_url: Callable[[str], str] = default_base_url,
        trust: Callable[[str], Trust] = default_trust,
        user_agent: str = "kepd",
        connect_s: float = 3.0,
    ) -> None:
        self._base_url = base_url
        self._trust = trust
        self._user_agent = user_agent
        self._connect_s = connect_s
        self._session: RegistrySession | None = None
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True
        if self._session is not None:
            await self._session.close()

    async def visit(self, reference: ImageReference, credential: Credential | None) -> "Visit":
        """Go to an image's registry. Raises ProbeFailed."""
        try:
            url, trust = self._base_url(reference.registry), self._trust(reference.registry)
            context = await asyncio.to_thread(_context, trust)
        except (OSError, ValueError):
            raise ProbeFailed("the configuration of the registry's hosts cannot be read") from None
        place = find_place(reference.registry, url)
        session = await self._ready_session()
        from agent.drivers.registry.visit import Visit

        return Visit(session, place, reference.path, credential, context)

    async def _ready_session(self) -> "RegistrySession":
        if self._session is None:
            # The first import takes longer than the event loop may stand still.
            await asyncio.to_thread(importlib.import_module, "agent.drivers.registry.visit")
            from agent.drivers.registry.session import RegistrySession

            if self.is_closed:
                raise ProbeFailed("the probe is being stopped")
            if self._session is None:
                self._session = RegistrySession(connect_s=self._connect_s, user_agent=self._user_agent)
        return self._session


def _context(trust: Trust) -> ssl.SSLContext | bool:
    """What aiohttp wants: True is the machine's own rule. Raises OSError for files that cannot be used."""
    if trust.is_unverified:
        return False
    if not trust.ca_files:
        return True
    context = ssl.create_default_context()
    for path in trust.ca_files:
        context.load_verify_locations(path)
    return context
