# SPDX-License-Identifier: Apache-2.0
"""Reads credentials in Docker's formats, and selects those to try for an image, in order.

Pull secrets of both types and the node's config files. Never: repeats a value in a message. Names of fields count
without regard to case, as Go reads them.
Source of behaviour: kubernetes `pkg/credentialprovider/config.go` and `keyring.go`.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.images.access.go_json import JsonInvalid, read_json
from agent.images.access.match_key import KeyInvalid, is_match, key_of_entry
from agent.model.images.credential import PULL_SECRET_KEYS, Credential, PullSecret, SecretText

(JSON_TYPE, JSON_KEY), (LEGACY_TYPE, LEGACY_KEY) = PULL_SECRET_KEYS.items()
BAD_AUTH = "unable to parse auth field, must be formatted as base64(username:password)"
HUB_FALLBACK = "index.docker.io"
HUB_NAMES = ("docker.io", HUB_FALLBACK)


class ConfigInvalid(ValueError):
    """It cannot be read. The message repeats nothing of it."""


class AuthEntry(msgspec.Struct, frozen=True):
    key: str
    credential: Credential


def read_secret(secret: PullSecret) -> list[AuthEntry]:
    """The entries of a pull secret; another type, or no data, has none. Raises ConfigInvalid."""
    source = f"secret:{secret.id.name}"
    if secret.type == JSON_TYPE and secret.data.get(JSON_KEY):
        document = _decoded(secret.data[JSON_KEY].reveal().encode())
        entries = _auths(document)
    elif secret.type == LEGACY_TYPE and secret.data.get(LEGACY_KEY):
        entries = _object(_decoded(secret.data[LEGACY_KEY].reveal().encode()), "the secret")
    else:
        return []
    return [AuthEntry(one.key, _owned(one.credential, source, secret)) for one in _entries(entries)]


def _owned(credential: Credential, source: str, secret: PullSecret) -> Credential:
    return Credential(
        username=credential.username,
        password=credential.password,
        email=credential.email,
        source=source,
        secret=secret.id,
    )


def read_config_file(content: bytes, *, is_legacy: bool = False) -> list[AuthEntry]:
    """The entries of a node's config.json (or .dockercfg). Raises ConfigInvalid."""
    document = _decoded(content)
    entries = _object(document, "the file") if is_legacy else _auths(document)
    return list(_entries(entries))


def _decoded(content: bytes) -> object:
    try:
        return read_json(content)
    except JsonInvalid as error:
        raise ConfigInvalid(str(error)) from None


def _auths(document: object) -> Mapping[str, object]:
    merged: dict[str, object] = {}
    for name, value in _object(document, "the document").items():
        if name.lower() == "auths" and value is not None:
            merged |= _object(value, "auths")
    return merged


def _entries(entries: Mapping[str, object]) -> Iterator[AuthEntry]:
    for key, value in entries.items():
        fields = {name.lower(): item for name, item in _object(value, "an entry of auths").items()}
        username, password = _text(fields, "username"), _text(fields, "password")
        if auth := _text(fields, "auth"):
            username, password = _user_and_password(auth)
        credential = Credential(username=username, password=SecretText(password), email=_text(fields, "email"))
        yield AuthEntry(key, credential)


def _user_and_password(auth: str) -> tuple[str, str]:
    is_padded = auth.strip().endswith("=")
    plain = auth.replace("\r", "").replace("\n", "")
    padding = "" if is_padded else "=" * (-len(plain) % 4)
    try:
        decoded = base64.b64decode(plain + padding, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        raise ConfigInvalid(BAD_AUTH) from None
    username, colon, password = decoded.partition(":")
    if not colon:
        raise ConfigInvalid(BAD_AUTH)
    return username, password


def _object(value: object, what: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigInvalid(f"{what} is not a JSON object")
    return value


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigInvalid(f"{name} is not a JSON string")
    return value


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
