# SPDX-License-Identifier: Apache-2.0
"""What the policies plane needs from outside."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol

from agent.model.services.nft_table import SetChange
from agent.policies.manifest.objects import PolicedPod


class TableTaken(Exception):
    """Another kepd enforces policies in this network namespace."""


class PolicyTable(Protocol):
    """Ours of the kernel; calls raise NftFailed. `load` runs a text as one transaction, as `change` does; `changes`
    has a sentence for each of somebody else's on it."""

    async def load(self, text_of_table: str) -> None: ...

    async def add_chains(self, names: Iterable[str]) -> None:
        """Empty ones."""

    async def change(self, changes: Iterable[SetChange], chains: Iterable[str], sets: Iterable[str]) -> None:
        """Elements, and chains and sets that go, as one transaction."""

    async def exists(self, *others: str) -> bool:
        """It, or one of another name."""

    async def counter(self, name: str) -> int: ...

    def changes(self) -> AsyncGenerator[str, None]: ...


class PodsHere(Protocol):
    """Pods of this node that have a sandbox; the one that got it last comes last."""

    async def listed(self) -> None:
        """Until all are known that an earlier kepd left running."""

    def pods(self) -> Sequence[PolicedPod]: ...

    def changes(self) -> AsyncIterator[object]: ...


NodeAddresses = Callable[[], Awaitable[Collection[bytes]]]
