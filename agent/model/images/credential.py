# SPDX-License-Identifier: Apache-2.0
"""Credentials for registries, wrapped so that no text shows them by accident, and the hash by which records know them.

Never: shows a password: repr, str and format of the wrapper are three stars.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

import msgspec

from agent.model.text.redaction import Hidden

PUBLIC = "public"
# Where Secrets of each type have their document.
PULL_SECRET_KEYS = {"kubernetes.io/dockerconfigjson": ".dockerconfigjson", "kubernetes.io/dockercfg": ".dockercfg"}
# Go's encoder writes these as escapes, and the hash is taken over what it writes.
GO_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


SecretText = Hidden[str]
NO_SECRET: SecretText = Hidden("")


class SecretId(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str = ""


class PullSecret(msgspec.Struct, frozen=True):
    """A Secret that a pod names in imagePullSecrets."""

    id: SecretId
    type: str
    data: Mapping[str, SecretText] = msgspec.field(default_factory=dict)


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What one pull attempt presents. `source` is `secret:NAME`, `node` or `provider:NAME`."""

    username: str
    password: SecretText = NO_SECRET
    email: str = ""
    identity_token: SecretText = NO_SECRET
    source: str = "node"
    secret: SecretId | None = None

    @property
    def is_node_wide(self) -> bool:
        """Whether every pod of the node may use what it fetched."""
        return self.secret is None

    def hash(self) -> str:
        """SHA-256 as a kubelet's records have it: over the compact JSON, empty fields left out."""
        fields = {
            "username": self.username,
            "password": self.password.reveal(),
            "email": self.email,
            "identitytoken": self.identity_token.reveal(),
        }
        text = json.dumps({k: v for k, v in fields.items() if v}, ensure_ascii=False, separators=(",", ":"))
        for sign, escape in GO_ESCAPES.items():
            text = text.replace(sign, escape)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()

    def __repr__(self) -> str:
        who = hashlib.sha256(self.username.encode()).hexdigest()[:8]
        return f"Credential(user={who}, source={self.source})"


def fingerprint(credentials: Sequence[Credential]) -> str:
    """What two requests must share to share a pull: the whole list in its order; `public` without any."""
    if not credentials:
        return PUBLIC
    whole = hashlib.sha256()
    for credential in credentials:
        whole.update(credential.hash().encode())
    return whole.hexdigest()[:24]
