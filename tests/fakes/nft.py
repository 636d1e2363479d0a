# SPDX-License-Identifier: Apache-2.0
"""A kernel with our table in it, that refuses what the real one refuses.

`FakeKernel` outlives drivers as the real one does; tests act as other processes through its methods.
Source of behaviour: NF-8, NF-35 and tests/contract/test_nft.py, which runs both on the same transactions.
"""

import asyncio
import errno
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

from msgspec.structs import replace

from agent.drivers.nft.elements import data_size, key_size
from agent.model.services.nft_error import NftFailed, RulesRefused
from agent.model.services.nft_table import (
    CLIENTS,
    LAYOUT,
    PATTERN,
    TABLE,
    WAYS_IN,
    AffineClient,
    Batch,
    ChoiceChain,
    Data,
    Family,
    MapKind,
    TableState,
    client_map_of,
    layout_of,
)
from tests.fakes.nft_text import FakeTable, read_text


class FakeKernel:
    """The tables of both families, and who listens."""

    def __init__(self) -> None:
        self.tables: dict[Family, FakeTable] = {}
        self.traffic: dict[tuple[str, bytes], tuple[int, int]] = {}
        """Map and key → packets and bytes, as a test wants them counted."""
        self.race_drops = 0
        self.rivals: list[str] = []
        self.forward_drops: list[str] = []
        """What else programs Services."""
        self.failures: list[NftFailed] = []
        """Raised by the next calls that change something, one each."""
        self._listeners: list[asyncio.Queue[tuple[Family, str]]] = []

    def flush_by_others(self) -> None:
        """`nft flush ruleset`."""
        families = list(self.tables)
        self.tables.clear()
        for family in families:
            self.notify(family, "nft (pid 4711) changed kepd's table: table deleted")

    def notify(self, family: Family, sentence: str) -> None:
        for queue in self._listeners:
            queue.put_nowait((family, sentence))

    def listen(self) -> asyncio.Queue[tuple[Family, str]]:
        queue: asyncio.Queue[tuple[Family, str]] = asyncio.Queue()
        self._listeners.append(queue)
        return queue


class FakeNft:
    def __init__(self, family: Family, kernel: FakeKernel | None = None) -> None:
        self.kernel = kernel or FakeKernel()
        self.batches: list[Batch] = []
        """What was applied, in order."""
        self._family: Family = family

    async def check(self) -> None:
        """This node can have the table."""

    async def rivals(self) -> Sequence[str]:
        """What a test put there."""
        return list(self.kernel.rivals)

    async def forward_drops(self) -> Sequence[str]:
        return list(self.kernel.forward_drops)

    async def load(self, text: str) -> None:
        self._fail()
        self.kernel.tables = read_text(text, self.kernel.tables)

    async def has_services(self) -> bool:
        """Whether anything leads to a Service."""
        table = self.kernel.tables.get(self._family)
        return table is not None and any(table.content.get(name) for name in WAYS_IN)

    async def most_elements(self) -> int:
        """No limit that matters."""
        return 1 << 20

    async def pattern(self, text: str) -> Mapping[str, tuple[bytes, ...]]:
        """What becomes of the text, without a trace."""
        self._fail()
        (table,) = read_text(text.replace(PATTERN, TABLE), {}).values()
        return {name: body.rules for name, body in table.bodies().items() if body.rules}

    async def read(self) -> TableState | None:
        table = self.kernel.tables.get(self._family)
        if table is None:
            return None
        copied = table.copy()
        return TableState(copied.comment, copied.bodies(), copied.content)

    async def apply(self, batch: Batch) -> None:
        self._fail()
        if not batch:
            return
        table = self.kernel.tables.get(self._family)
        changed = _Change(table.copy() if table is not None else FakeTable(), self._family)
        changed.apply(batch)
        self.kernel.tables[self._family] = changed.table
        kept = batch.replaced
        for name, keys in batch.deletes.items():
            for key in keys:
                if key not in kept.get(name, ()):
                    self.kernel.traffic.pop((name, key), None)
        self.batches.append(replace(batch))

    async def changes(self) -> AsyncGenerator[str, None]:
        """What tests do as other processes."""
        queue = self.kernel.listen()
        while True:
            family, sentence = await queue.get()
            if family == self._family:
                yield sentence

    async def counters(self, name: str) -> Mapping[bytes, tuple[int, int]]:
        """What the test put into `traffic`."""
        table = self.kernel.tables.get(self._family)
        if table is None or name not in table.content:
            raise NftFailed(f"map {name}: No such file or directory")
        return {key: self.kernel.traffic.get((name, key), (0, 0)) for key in table.content[name]}

    async def race_drops(self) -> int:
        """What the test put into `race_drops`."""
        if self._family not in self.kernel.tables:
            raise NftFailed("counter race_drops: No such file or directory")
        return self.kernel.race_drops

    async def client_count(self, name: str) -> int:
        return len(await self.clients(name))

    async def clients(self, name: str, most: int = 0, pairs: Collection[bytes] | None = None) -> Sequence[AffineClient]:
        table = self.kernel.tables.get(self._family)
        if table is None or name not in table.clients:
            raise NftFailed(f"map {name}: No such file or directory")
        entries = [(key, data) for key, data in table.clients[name].items() if isinstance(data, bytes)]
        every = [
            AffineClient(key, data[:-8], int.from_bytes(data[-8:], "big")) for key, data in entries[: most or None]
        ]
        return [one for one in every if pairs is None or one.pair in pairs]

    async def close(self) -> None:
        """Nothing to let go of."""

    def _fail(self) -> None:
        if self.kernel.failures:
            raise self.kernel.failures.pop(0)


class _Change:
    """One transaction on a copy. Raises at the first thing the kernel would refuse."""

    def __init__(self, table: FakeTable, family: Family) -> None:
        self.table = table
        self._family: Family = family

    def apply(self, batch: Batch) -> None:
        for name, body in batch.bodies.items():
            other = self.table.hooks.get(name, "").partition(";")[0] != body.hook.partition(";")[0]
            if other and name in self.table.rules:
                raise RulesRefused.by_kernel(errno.EEXIST, chain=name)
            self.table.rules[name] = tuple(rule.decode() for rule in body.rules)
            if body.hook:
                self.table.hooks[name] = body.hook
        for chain in batch.chains:
            self._add_chain(chain)
        for name, keys in batch.deletes.items():
            self._check_sizes(name, dict.fromkeys(keys))
            for key in keys:
                self._delete(name, key)
        for name, pairs in batch.adds.items():
            self._check_sizes(name, dict(pairs))
            for key, data in pairs:
                self._add(name, key, data)
        for gone in batch.gone_chains:
            self._drop_chain(gone)
        for name in batch.gone_maps:
            if name in map(client_map_of, self.table.rules):
                raise RulesRefused.by_kernel(errno.EBUSY, map=name)
            if self.table.clients.pop(name, None) is None:
                raise RulesRefused.by_kernel(errno.ENOENT, map=name)

    def _add_chain(self, chain: ChoiceChain) -> None:
        if LAYOUT not in self.table.rules or chain.map not in self.table.content:
            raise RulesRefused.by_kernel(errno.ENOENT, chain=chain.name)
        self.table.rules[chain.name] = _choice_rules(chain)
        self.table.clients.setdefault(chain.clients, {})

    def _drop_chain(self, name: str) -> None:
        if name not in self.table.rules:
            raise RulesRefused.by_kernel(errno.ENOENT, chain=name)
        if self.table.jumps[name]:
            raise RulesRefused.by_kernel(errno.EBUSY, chain=name)
        del self.table.rules[name]
        self.table.hooks.pop(name, None)

    def _check_sizes(self, name: str, elements: Mapping[bytes, Data]) -> None:
        """The driver itself refuses these before anything is sent."""
        layout = layout_of(name)
        size = key_size(layout, self._family) * (2 if layout.kind is MapKind.INTERVAL else 1)
        for key in elements:
            if len(key) != size:
                raise RulesRefused.by_kernel(errno.EINVAL, map=name, key=key)

    def _delete(self, name: str, key: bytes) -> None:
        elements = self._elements(name)
        if elements is None or key not in elements:
            raise RulesRefused.by_kernel(errno.ENOENT, map=name, key=key)
        del elements[key]

    def _add(self, name: str, key: bytes, data: Data) -> None:
        layout = layout_of(name)
        elements = self._elements(name)
        if elements is None:
            raise RulesRefused.by_kernel(errno.ENOENT, map=name, key=key)
        width = data_size(layout, self._family)
        if layout.kind is MapKind.VERDICT:
            if not isinstance(data, str):
                raise RulesRefused.by_kernel(errno.EINVAL, map=name, key=key)
            if data and data not in self.table.rules:
                raise RulesRefused.by_kernel(errno.ENOENT, map=name, key=key)
        elif width and (not isinstance(data, bytes) or len(data) != width):
            raise RulesRefused.by_kernel(errno.EINVAL, map=name, key=key)
        if key in elements:
            if elements[key] != data:
                raise RulesRefused.by_kernel(errno.EEXIST, map=name, key=key)
            return
        if layout.kind is MapKind.INTERVAL and _overlaps(elements, key, self._widths(name)):
            raise RulesRefused.by_kernel(errno.EEXIST, map=name, key=key)
        if layout.kind is MapKind.CLIENT and name != CLIENTS and len(elements) >= int(name.rpartition("_")[2]):
            raise RulesRefused.by_kernel(errno.ENFILE, map=name, key=key)
        elements[key] = data

    def _elements(self, name: str) -> dict[bytes, Data] | None:
        return self.table.content.get(name, self.table.clients.get(name))

    def _widths(self, name: str) -> list[int]:
        address = 4 if self._family == "IPv4" else 16
        return [address if part == "address" else 4 for part in layout_of(name).key]


def _choice_rules(chain: ChoiceChain) -> tuple[str, ...]:
    """As many as the driver writes."""
    known = ("client that came before", "first of its list") if chain.timeout_s else ()
    how = f"{chain.hashing} hash, " if chain.hashing else ""
    return (*known, f"{how}one of {chain.count} in {chain.map}", f"one of 1 in {chain.map}", "drop")


def _overlaps(elements: Mapping[bytes, Data], key: bytes, widths: list[int]) -> bool:
    """In a tree: any overlap. In a concatenation the kernel looks for both ends of the new range in the old ones."""
    half = sum(widths)
    first, last = key[:half], key[half:]
    if len(widths) == 1:
        return any(first <= other[half:] and other[:half] <= last for other in elements)
    return any(_holds(other, end, widths) for other in elements for end in (first, last))


def _holds(other: bytes, end: bytes, widths: list[int]) -> bool:
    """Whether every component of `end` lies in that of a range."""
    half = sum(widths)
    at = 0
    for width in widths:
        if not other[at : at + width] <= end[at : at + width] <= other[half + at : half + at + width]:
            return False
        at += width
    return True
