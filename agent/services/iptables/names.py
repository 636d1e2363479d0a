# SPDX-License-Identifier: Apache-2.0
"""Names of chains and comments of rules, as kube-proxy gives them, so that operators and their tools find them.

Nothing from a name can end a comment, begin an option or begin a line.
Source of behaviour: kubernetes/kubernetes: pkg/proxy/iptables/proxier.go.
"""

import re
from hashlib import sha256

import msgspec

from agent.model.services.service import Backend, ServiceKey
from agent.services.routes.frontends import PortPlan, port_name

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
# Two characters of base32 at a time: b64encode is in C, b32encode is not, and a first sync makes 100 000 names. Three
# at a time would be a little faster, and 2 MB that every daemon with Services has to carry.
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_HASH_BYTES = 10
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
    """16 characters of base32: 80 bits."""
    bits = int.from_bytes(sha256(text.encode()).digest()[:_HASH_BYTES], "big")
    return (
        f"{_PAIRS[bits >> 70]}{_PAIRS[bits >> 60 & 1023]}{_PAIRS[bits >> 50 & 1023]}{_PAIRS[bits >> 40 & 1023]}"
        f"{_PAIRS[bits >> 30 & 1023]}{_PAIRS[bits >> 20 & 1023]}{_PAIRS[bits >> 10 & 1023]}{_PAIRS[bits & 1023]}"
    )


def names_of(key: ServiceKey, port: PortPlan) -> PortNames:
    told, protocol = port_name(key, port.port.name), port.port.protocol.lower()
    digest = _hashed(told + protocol)
    kinds = [f"KUBE-{kind}-{digest}" for kind in ("SVC", "SVL", "EXT", "FW")]
    return PortNames(told, protocol, *kinds)


def endpoint_chain(names: PortNames, backend: Backend) -> str:
    return f"KUBE-SEP-{_hashed(names.told + names.protocol + backend.key)}"


def comment(text: str) -> str:
    """As a match. What might mean something to iptables-restore is shown as a question mark."""
    return f'-m comment --comment "{_UNSAFE.sub("?", text)[:_MOST_CHARACTERS]}"'
