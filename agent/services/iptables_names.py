# SPDX-License-Identifier: Apache-2.0
"""Names of chains and comments of rules, as kube-proxy gives them.

Owns: the hashes, so that tools and habits of operators find the chains they know; and what a comment may hold: nothing
from a name can end a comment, begin an option or begin a line.
Never: knows what is in a chain.
Source of behaviour: IP-1; kubernetes/kubernetes: pkg/proxy/iptables/proxier.go.
"""

import re
from base64 import b32encode
from hashlib import sha256

import msgspec

from agent.model.service import Backend, ServiceKey
from agent.services.frontends import PortPlan, port_name

__all__ = ["PortNames", "comment", "endpoint_chain", "names_of"]

_HASH_CHARACTERS = 16
_MOST_CHARACTERS = 250
_UNSAFE = re.compile(r"[^A-Za-z0-9 ._:;,/>\[\]-]")


class PortNames(msgspec.Struct, frozen=True, gc=False):
    """Of one service port. `told` is what comments call it."""

    told: str
    protocol: str
    cluster: str
    local: str
    external: str
    firewall: str


def _hashed(text: str) -> str:
    return b32encode(sha256(text.encode()).digest()).decode()[:_HASH_CHARACTERS]


def names_of(key: ServiceKey, port: PortPlan) -> PortNames:
    """All that the port may have."""
    told, protocol = port_name(key, port.port.name), port.port.protocol.lower()
    digest = _hashed(told + protocol)
    kinds = [f"KUBE-{kind}-{digest}" for kind in ("SVC", "SVL", "EXT", "FW")]
    return PortNames(told, protocol, *kinds)


def endpoint_chain(names: PortNames, backend: Backend) -> str:
    """Of one endpoint behind the port."""
    return f"KUBE-SEP-{_hashed(names.told + names.protocol + backend.key)}"


def comment(text: str) -> str:
    """As a match. What might mean something to iptables-restore is shown as a question mark."""
    return f'-m comment --comment "{_UNSAFE.sub("?", text)[:_MOST_CHARACTERS]}"'
