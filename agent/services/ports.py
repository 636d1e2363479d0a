# SPDX-License-Identifier: Apache-2.0
"""What the services plane needs from outside."""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from agent.model.services.check import Asked, Outcome
from agent.model.services.flow import Flow
from agent.model.services.iptables_rules import Chains, RulesChange
from agent.model.services.iptables_rules import Content as ChainContent
from agent.model.services.iptables_rules import Table as ChainTable
from agent.model.services.nft_table import AffineClient, Batch, TableState


class RuleTable(Protocol):
    """The nftables table of one family. Failures are those of agent/model/services/nft_error.py."""

    async def check(self) -> None:
        """Whether this node can have the table at all."""

    async def rivals(self) -> Sequence[str]:
        """What else programs Services here, as far as its rules show."""

    async def forward_drops(self) -> Sequence[str]:
        """Chains of others whose policy drops what this node forwards."""

    async def load(self, text: str) -> None:
        """Run a text of structure as one transaction."""

    async def has_services(self) -> bool:
        """Whether anything leads to a Service in it."""

    async def most_elements(self) -> int:
        """That one transaction can have on this node."""

    async def pattern(self, text: str) -> Mapping[str, tuple[bytes, ...]]:
        """Load a text of `pattern_text`, take the rules of its chains as the kernel has them, and remove it again."""

    async def read(self) -> TableState | None:
        """What is there; None: no table of ours."""

    async def apply(self, batch: Batch) -> None:
        """Atomic."""

    async def client_count(self, name: str) -> int:
        """Entries of a map of clients."""

    async def clients(self, name: str, most: int = 0, pairs: Collection[bytes] | None = None) -> Sequence[AffineClient]:
        """About so many of them, or all; of these, those of the given endpoints and numbers of ports."""

    def changes(self) -> AsyncGenerator[str, None]:
        """Who changed our table, other than we ourselves: a sentence for the log. Never ends."""

    async def counters(self, name: str) -> Mapping[bytes, tuple[int, int]]:
        """Packets and bytes per element of a map with counters."""

    async def race_drops(self) -> int:
        """Packets that were dropped because their endpoint went between two lookups."""


class ChainTables(Protocol):
    """The iptables tables of one family. Failures are those of nft_error.py."""

    async def check(self) -> None:
        """Whether this node can have rules there at all."""

    async def rivals(self) -> Sequence[str]:
        """What else programs Services here, as far as its chains show."""

    async def read(self) -> ChainContent:
        """What is there, chains of others included."""

    async def apply(self, change: RulesChange, ahead: Iterable[Chains] = ()) -> None:
        """Table by table: each all of it or nothing, and nothing in those after a refused one. `ahead` are chains of
        nat that are made while they are being written, before what the change leads to them."""

    @property
    def most_chains(self) -> int:
        """How many one change should have at most; 0: it does not matter."""

    def sign(self) -> bytes:
        """Another one when a program changed rules, as far as the kernel tells; it costs next to nothing. Empty when
        the kernel does not answer."""

    @property
    def signs_all(self) -> bool:
        """Whether every change leaves a sign."""

    async def missing_canaries(self) -> Sequence[ChainTable]:
        """Tables that somebody flushed."""

    async def allow_loopback(self) -> None:
        """Let the kernel lead loopback addresses elsewhere."""


class HostSockets(Protocol):
    """TCP sockets of processes of this host. Failures are SocketsUnavailable."""

    async def destroy(self, flows: Iterable[Flow]) -> int:
        """End the client's socket of each of these connections; how many were there."""


class EndpointChecks(Protocol):
    """Asks endpoints whether they answer, and never waits for it."""

    def begin(self, asked: Asked, now_s: float) -> None: ...

    def ended(self, now_s: float) -> Sequence[tuple[Asked, Outcome]]:
        """What came of those that ended since the last time."""

    def drop(self) -> None:
        """What is on its way is of no interest any more."""

    def close(self) -> None: ...


class LocalEnds(Protocol):
    """What the runtime of this node says of pods of this node."""

    def ended(self) -> Mapping[bytes, str]:
        """Addresses whose pod serves no longer, and why."""

    def changes(self) -> AsyncIterator[None]:
        """Something may be different. Never ends."""
