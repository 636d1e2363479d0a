# SPDX-License-Identifier: Apache-2.0
"""Connections that are open to pods that end, by answers of `kepctl end connections --to IP:PORT --dry-run -o json`.

A daemon knows those of its node, and not how long they have been idle. So each that is open now counts: its program may
close it at its signal, and the kill ends it at the latest. Never: asks a daemon; a rehearsal works on files alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from kepd_rehearsal.plan.cluster import Member, part
from kepd_rehearsal.plan.reading import listed_in


class _Connection(msgspec.Struct, frozen=True):
    client: str
    endpoint: str
    target: str = ""
    family: str = ""


class ConnectionAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All may be missing: an answer without connections is an empty object."""

    connections: tuple[_Connection, ...] = ()
    total: int = 0
    entries: int = 0
    sockets: int = 0


class OpenConnections(msgspec.Struct, frozen=True):
    """Numbers by address of the endpoint. `left_out` were too many for the answer."""

    by_address: Mapping[str, int] = {}
    left_out: int = 0

    def of(self, ending: Iterable[Member]) -> dict[str, int]:
        """By pods, without those that have none."""
        return {one.key: count for one in ending if (count := self._to(one))}

    def _to(self, one: Member) -> int:
        """None where the object is that of before a move. The address of a node is that of many pods and counts for
        none of them."""
        spec = part(one.made, "spec")
        if spec.get("nodeName") != one.node or spec.get("hostNetwork") is True:
            return 0
        status = part(one.made, "status")
        addresses = {status.get("podIP"), *(each.get("ip") for each in listed_in(status, "podIPs"))}
        return sum(self.by_address.get(each, 0) for each in addresses if isinstance(each, str))


def counted(answers: Iterable[ConnectionAnswer]) -> OpenConnections:
    """A connection that stands in several answers counts once."""
    seen: set[_Connection] = set()
    left_out = 0
    for answer in answers:
        seen.update(answer.connections)
        left_out += max(answer.total - len(answer.connections), 0)
    return OpenConnections(Counter(one.endpoint.rpartition(":")[0].strip("[]") for one in seen), left_out)
