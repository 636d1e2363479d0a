# SPDX-License-Identifier: Apache-2.0
"""A flow that the kernel tracks, and what its tracking table should allow."""

import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from typing import Protocol as Port

import msgspec

from agent.model.services.nft_table import Family
from agent.model.services.service import Protocol

UDP_ALONE: tuple[Protocol, ...] = ("UDP",)
"""Whose flows are deleted unless more is asked for."""

TCP_ALONE: tuple[Protocol, ...] = ("TCP",)


class FlowTarget(NamedTuple):
    address: bytes
    protocol: Protocol
    port: int


Answerers = Mapping[FlowTarget, Collection[bytes]]
"""By whom flows to some targets should be answered: packed addresses, each with the port behind it."""


class Flow(msgspec.Struct, frozen=True, gc=False):
    """One flow. Addresses are packed, as elements of our table have them. `identity` is the kernel's own number of the
    entry; a new flow between the same ports mostly has another one."""

    family: Family
    protocol: Protocol
    source: bytes
    source_port: int
    destination: bytes
    """Where the client sent it: a ClusterIP, for instance."""
    destination_port: int
    reply_source: bytes
    """Who answers: an endpoint, or the destination itself if nothing was translated."""
    reply_port: int
    identity: int = 0
    zone: int = 0
    is_over: bool = False
    """A TCP connection that both ends have closed, or that one of them broke off."""

    @property
    def is_untranslated(self) -> bool:
        """Whoever it was sent to answers itself."""
        return self.reply_source == self.destination and self.reply_port == self.destination_port

    @property
    def answerer(self) -> bytes:
        """Packed address and port of who answers, as endpoints are compared."""
        return self.reply_source + self.reply_port.to_bytes(2, "big")

    @property
    def target(self) -> FlowTarget:
        return FlowTarget(self.destination, self.protocol, self.destination_port)

    def is_answered_by_others(self, expected: Answerers) -> bool:
        """Whether it goes to one of these targets and none of its serving endpoints answers."""
        answerers = expected.get(self.target)
        return answerers is not None and self.answerer not in answerers

    def __str__(self) -> str:
        client = endpoint_text(self.source, self.source_port)
        destination = endpoint_text(self.destination, self.destination_port)
        answerer = endpoint_text(self.reply_source, self.reply_port)
        return f"{self.protocol} {client} to {destination}, answered by {answerer}"


class Flows(Port):
    """What the kernel tracks. Failures are FlowsUnavailable."""

    async def flows(
        self, family: Family, protocols: Collection[Protocol] = ..., unless: Answerers | None = None
    ) -> Sequence[Flow]:
        """All of these protocols, or those to the given targets that others answer."""

    async def delete(self, flows: Iterable[Flow]) -> int:
        """Exactly these; how many were still there."""

    async def follows_midstream(self) -> bool:
        """Whether whoever goes on with a connection that was deleted is led to another endpoint."""


class FlowsUnavailable(Exception):
    """The flows cannot be listed or deleted; the text says why, and what would be right."""


class SocketsUnavailable(Exception):
    """Sockets of this host cannot be ended; the text says why, and what would be right."""


def endpoint_text(address: bytes, port: int) -> str:
    text = str(ipaddress.ip_address(address))
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"
