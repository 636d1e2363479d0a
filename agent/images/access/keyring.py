# SPDX-License-Identifier: Apache-2.0
"""Selects the credentials to try for an image, in order.

Source of behaviour: kubernetes `pkg/credentialprovider/keyring.go`.
"""

from collections.abc import Iterable, Sequence

import msgspec

from agent.images.access.dockerconfig import AuthEntry, ConfigInvalid, read_secret
from agent.images.access.match_key import KeyInvalid, is_match, key_of_entry
from agent.model.images.credential import Credential, PullSecret

HUB_FALLBACK = "index.docker.io"
HUB_NAMES = ("docker.io", HUB_FALLBACK)


class BadSecret(msgspec.Struct, frozen=True):
    name: str
    reason: str


class SecretRing(msgspec.Struct, frozen=True):
    entries: tuple[AuthEntry, ...]
    bad: tuple[BadSecret, ...] = ()


def secret_ring(secrets: Sequence[PullSecret], *, is_strict: bool = False) -> SecretRing:
    """Read the secrets of a pod. One that cannot be read is left out, or raises ConfigInvalid if `is_strict`."""
    entries: list[AuthEntry] = []
    bad: list[BadSecret] = []
    for secret in secrets:
        if not secret.id.name:
            continue
        try:
            # The kubelet leaves open which of two spellings of one key comes first; we go by the spelling.
            entries += sorted(read_secret(secret), key=lambda entry: entry.key)
        except ConfigInvalid as error:
            if is_strict:
                raise
            bad.append(BadSecret(secret.id.name, str(error)))
    return SecretRing(tuple(entries), tuple(bad))


def entries_for(repo: str, entries: Iterable[AuthEntry]) -> list[Credential]:
    """What one set of entries has for a repository, the most telling key first."""
    by_key: dict[str, list[Credential]] = {}
    for entry in entries:
        try:
            key = key_of_entry(entry.key)
        except KeyInvalid:
            continue
        by_key.setdefault(key, []).append(entry.credential)
    found = [
        credential
        for key in sorted(by_key, key=str.encode, reverse=True)
        if is_match(key, repo)
        for credential in by_key[key]
    ]
    return found or (by_key.get(HUB_FALLBACK, []) if _is_on_hub(repo) else [])


def _is_on_hub(repo: str) -> bool:
    host, slash, _ = repo.partition("/")
    if not slash or host in HUB_NAMES:
        return bool(host)
    return bool(host) and not {".", ":"} & set(host)
