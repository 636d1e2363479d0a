# SPDX-License-Identifier: Apache-2.0
"""Registries in memory that tell sizes.

Owns: images with their sizes and logins, registries that are broken, and what was asked.
Never: answers where a real registry would not: an unknown image, a wrong login, or one that rests after a failure.
"""

from agent.drivers.registry.driver import RegistryCooldown
from agent.model.clock import Clock
from agent.model.image_credential import Credential
from agent.model.image_reference import ReferenceInvalid, parse_reference

__all__ = ["FakeRegistrySizes"]


class FakeRegistrySizes:
    """The registries of a test. `asked` has every reference that reached one, in order."""

    def __init__(self, *, clock: Clock) -> None:
        self.asked: list[str] = []
        self._clock = clock
        self._images: dict[str, tuple[int, Credential | None]] = {}
        self._broken: set[str] = set()
        self._cooldown = RegistryCooldown()
        self._is_closed = False

    def put(self, reference: str, size_bytes: int, login: Credential | None = None) -> None:
        """An image; with a login, only who presents the same gets an answer."""
        self._images[str(parse_reference(reference))] = (size_bytes, login)

    def break_registry(self, registry: str, *, is_broken: bool = True) -> None:
        """From now on it answers nothing but errors, or works again."""
        (self._broken.add if is_broken else self._broken.discard)(registry)

    async def size_bytes(self, reference: str, credential: Credential | None) -> int | None:
        try:
            parsed = parse_reference(reference)
        except ReferenceInvalid:
            return None
        now_s = self._clock.now_s()
        if self._is_closed or self._cooldown.holds(parsed.registry, now_s):
            return None
        self.asked.append(str(parsed))
        size_bytes, login = self._images.get(str(parsed), (None, None))
        if parsed.registry in self._broken or not _opens(login, credential):
            self._cooldown.begin(parsed.registry, now_s)
            return None
        return size_bytes

    async def close(self) -> None:
        """Who asks afterwards hears None."""
        self._is_closed = True


def _opens(login: Credential | None, credential: Credential | None) -> bool:
    return login is None or (credential is not None and credential.hash() == login.hash())
