# SPDX-License-Identifier: Apache-2.0
"""Writes requests to a credential provider plugin, reads its answers, as JSON, and keeps them as long as they say.

Never: repeats any part of an answer in a message, because all of it may be secret.
Source of behaviour: kubernetes `credentialprovider.kubelet.k8s.io/v1`, `pkg/credentialprovider/plugin/plugin.go`.
"""

import re
from enum import StrEnum

import msgspec

from agent.images.access.dockerconfig import AuthEntry
from agent.images.access.provider_config import Provider
from agent.model.images.credential import Credential, SecretText

REQUEST_KIND = "CredentialProviderRequest"
RESPONSE_KIND = "CredentialProviderResponse"
# Go's durations; metav1.Duration is written this way.
DURATION = re.compile(r"(?P<sign>-?)(?P<parts>(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+)")
PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PURGE_EVERY_S = 900.0
RENEW_AT = 0.8
GLOBAL_KEY = "global"


class AnswerInvalid(ValueError):
    """The answer cannot be used. The message repeats nothing of it."""


class CacheKeyType(StrEnum):
    """For what else the answer holds."""

    IMAGE = "Image"
    REGISTRY = "Registry"
    GLOBAL = "Global"


class _Auth(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""


class _Response(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    cache_key_type: str = ""
    cache_duration: str | None = None
    auth: dict[str, _Auth] | None = None


class PluginAnswer(msgspec.Struct, frozen=True):
    """Credentials by pattern. `cache_s` None = the provider's default; 0 = not to be kept."""

    key_type: CacheKeyType
    cache_s: float | None
    entries: tuple[tuple[str, Credential], ...]


def encode_request(provider: Provider, image: str) -> bytes:
    """What goes to the plugin's standard input. `image` is the repository, without tag."""
    return msgspec.json.encode({"kind": REQUEST_KIND, "apiVersion": provider.api_version, "image": image})


def decode_answer(provider: Provider, content: bytes) -> PluginAnswer:
    """Read what the plugin printed. Raises AnswerInvalid."""
    try:
        response = msgspec.json.decode(content, type=_Response)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise AnswerInvalid(f"did not print a {RESPONSE_KIND}") from None
    if response.kind != RESPONSE_KIND or response.api_version != provider.api_version:
        raise AnswerInvalid(f"did not answer with a {RESPONSE_KIND} of {provider.api_version}")
    try:
        key_type = CacheKeyType(response.cache_key_type)
    except ValueError:
        raise AnswerInvalid("gave a cacheKeyType that is neither Image nor Registry nor Global") from None
    source = f"provider:{provider.name}"
    entries = tuple(
        (pattern, Credential(username=auth.username, password=SecretText(auth.password), source=source))
        for pattern, auth in (response.auth or {}).items()
    )
    return PluginAnswer(key_type, _seconds(response.cache_duration), entries)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    if text == "0":
        return 0.0
    found = DURATION.fullmatch(text)
    if found is None:
        raise AnswerInvalid("gave a cacheDuration that is not a duration")
    seconds = sum(float(amount) * UNITS_S[unit] for amount, unit in PART.findall(found["parts"]))
    if found["sign"] and seconds:
        raise AnswerInvalid("gave a negative cacheDuration")
    return seconds


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
