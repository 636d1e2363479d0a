# SPDX-License-Identifier: Apache-2.0
"""Registries that are left alone for a while."""

__all__ = ["REST_S", "RegistryCooldown"]

REST_S = 60.0


class RegistryCooldown:
    """Changed only by its owner, a driver; forgets by itself."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def begin(self, registry: str, now_s: float) -> None:
        """It failed now."""
        self._until_s = {name: until_s for name, until_s in self._until_s.items() if until_s > now_s}
        self._until_s[registry] = now_s + REST_S

    def holds(self, registry: str, now_s: float) -> bool:
        """Whether it is not to be asked yet."""
        return self._until_s.get(registry, now_s) > now_s

    def __repr__(self) -> str:
        return f"RegistryCooldown({', '.join(sorted(self._until_s))})"
