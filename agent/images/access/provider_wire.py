# SPDX-License-Identifier: Apache-2.0
"""Writes requests to a credential provider plugin and reads its answers, as JSON.

Never: repeats any part of an answer in a message, because all of it may be secret.
Source of behaviour: kubernetes `credentialprovider.kubelet.k8s.io/v1`.
"""

import re
from enum import StrEnum

import msgspec

from agent.images.access.provider_config import Provider
from agent.model.images.credential import Credential, SecretText

REQUEST_KIND = "CredentialProviderRequest"
RESPONSE_KIND = "CredentialProviderResponse"
# Go's durations; metav1.Duration is written this way.
DURATION = re.compile(r"(?P<sign>-?)(?P<parts>(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+)")
PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


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
