# SPDX-License-Identifier: Apache-2.0
"""Caches answers of one credential provider for as long as they say, and says when to renew them.

Source of behaviour: kubernetes `pkg/credentialprovider/plugin/plugin.go`.
"""

import msgspec

from agent.images.access.dockerconfig import AuthEntry
from agent.images.access.provider_config import Provider
from agent.images.access.provider_wire import CacheKeyType, PluginAnswer

PURGE_EVERY_S = 900.0
RENEW_AT = 0.8
GLOBAL_KEY = "global"


class Cached(msgspec.Struct, frozen=True):
    entries: tuple[AuthEntry, ...]
    fetched_s: float
    expires_s: float

    def is_valid(self, now_s: float) -> bool:
        return now_s < self.expires_s

    def is_due(self, now_s: float) -> bool:
        return now_s >= self.fetched_s + RENEW_AT * (self.expires_s - self.fetched_s)


class ProviderCache:
    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._answers: dict[tuple[str, str], Cached] = {}
        self._purged_s = 0.0

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, repo: str, now_s: float) -> Cached | None:
        """What holds for an image: an answer for it, for its registry, or for all, in this order."""
        for key_type in CacheKeyType:
            cached = self._answers.get(_key(key_type, repo))
            if cached is not None and cached.is_valid(now_s):
                return cached
        return None

    def keep(self, repo: str, answer: PluginAnswer, now_s: float) -> tuple[AuthEntry, ...]:
        """Take an answer in, if it may be kept; answers with its entries."""
        entries = tuple(AuthEntry(pattern, credential) for pattern, credential in answer.entries)
        lifetime_s = self._provider.default_cache_s if answer.cache_s is None else answer.cache_s
        if lifetime_s > 0:
            key = _key(answer.key_type, repo)
            self._answers[key] = Cached(entries, now_s, now_s + lifetime_s)
        if now_s - self._purged_s > PURGE_EVERY_S:
            self._answers = {key: one for key, one in self._answers.items() if one.is_valid(now_s)}
            self._purged_s = now_s
        return entries


def _key(key_type: CacheKeyType, repo: str) -> tuple[str, str]:
    match key_type:
        case CacheKeyType.IMAGE:
            return "image", repo
        case CacheKeyType.REGISTRY:
            return "registry", repo.partition("/")[0]
        case CacheKeyType.GLOBAL:
            return GLOBAL_KEY, ""
