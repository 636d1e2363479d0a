# SPDX-License-Identifier: Apache-2.0
"""The legacy tables of one family, read and cleaned through python-iptables: no program of the legacy variant has to be
installed for that, and whoever uses legacy tables from within a container installs none.

Owns: finding the library (the extra `legacy`, or Debian's python3-iptables), which tables are in use, who jumps where,
and taking our chains out of a table in one replacement, under the lock of iptables.
Never: opens a table that the kernel does not name as in use, for opening one creates it; never reads targets by the
library's Rule, which opens all tables; never writes a rule.
Source of behaviour: IP-10, IP-11, IP-13.
"""

import asyncio
import ctypes
import fcntl
import importlib
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import structlog

from agent.drivers.iptables.variant import legacy_names
from agent.model.iptables_error import LockHeld
from agent.model.iptables_rules import RIVALS, TABLES, Table, is_ours, rival_chains
from agent.model.nft_error import NftFailed, NftMissing
from agent.model.nft_table import Family

log = structlog.get_logger(plane="services")

_DEBIAN = "/usr/lib/python3/dist-packages"
_LOCK = Path("/run/xtables.lock")
_LOCK_WITHIN_S, _LOCK_STEP_S = 2.0, 0.2
_Result = TypeVar("_Result")
Jumps = Mapping[Table, Mapping[str, Sequence[str]]]
"""Table → chain → the chains its rules lead to."""


class OpenTable(Protocol):
    """What we use of the library's table. The numbers of rules are known to its C library alone."""

    _iptc: Any
    _handle: object

    @property
    def chains(self) -> Sequence[Any]: ...
    def first_rule(self, chain: str) -> Any: ...  # noqa: ANN401
    def next_rule(self, entry: Any) -> Any: ...  # noqa: ANN401
    def get_target(self, entry: Any) -> bytes | None: ...  # noqa: ANN401
    def flush_entries(self, chain: str) -> None: ...
    def delete_chain(self, chain: str) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class Inside(Protocol):
    """Runs work where the tables are."""

    def __call__(self, work: Callable[[], _Result], /) -> _Result: ...


def _here(work: Callable[[], _Result]) -> _Result:
    return work()


def find_library() -> ModuleType | None:
    """None: not installed, or not for this Python."""
    for place in ("", _DEBIAN):
        if place and not Path(place, "iptc").is_dir():
            continue
        if place:
            sys.path.append(place)
        try:
            return importlib.import_module("iptc")
        except Exception as error:  # noqa: BLE001 - it loads C libraries by name while it is imported, and fails in many ways
            log.debug("python_iptables_not_usable", place=place or "this environment", error=repr(error))
        finally:
            if place:
                sys.path.remove(place)
    return None


class LegacyTables:
    """One family. `inside` is for tests, whose tables are in another network namespace."""

    def __init__(
        self,
        family: Family,
        *,
        library: Callable[[], ModuleType | None] = find_library,
        inside: Inside = _here,
        in_use: Callable[[Family], str] | None = None,
        lock: Path = _LOCK,
    ) -> None:
        self.family: Family = family
        self._library = library
        self._inside = inside
        self._in_use = in_use or legacy_names
        self._lock = lock

    def in_use(self) -> Sequence[Table]:
        """As the kernel says; asking this creates nothing."""
        names = self._in_use(self.family).split()
        return [table for table in TABLES if table in names]

    async def rivals(self) -> Sequence[str]:
        """Chains of other programs for Services (DS-14)."""
        return [
            f"chain {chain} of {RIVALS[chain]} in table {table} of the legacy tables of {self.family}"
            for table, chains in (await self.read()).items()
            for chain in rival_chains(chains)
        ]

    async def read(self) -> Jumps:
        tables = self.in_use()
        if not tables:
            return {}
        library = self._needed(tables)
        return await asyncio.to_thread(self._inside, lambda: {table: self._jumps(library, table) for table in tables})

    async def remove(self, is_meant: Callable[[Collection[str]], bool]) -> Sequence[Table]:
        """Chains for Services and the jumps to them, from tables whose chains are meant. The tables that had any."""
        found = [table for table, chains in (await self.read()).items() if is_meant(chains)]
        if found:
            library = self._needed(found)
            await asyncio.to_thread(self._inside, lambda: self._clean(library, found))
        return found

    def _needed(self, tables: Sequence[str]) -> ModuleType:
        library = self._library()
        if library is None:
            raise NftMissing(
                f"legacy tables are in use ({', '.join(tables)} of {self.family}) and python-iptables, which reads "
                "them, is missing: install kepd[legacy] or Debian's python3-iptables"
            )
        return library

    def _jumps(self, library: ModuleType, table: Table) -> dict[str, list[str]]:
        with self._opened(library, table) as opened:
            chains = [chain.name for chain in opened.chains]
            return {chain: list(_targets(opened, chain)) for chain in chains}

    def _clean(self, library: ModuleType, tables: Sequence[Table]) -> None:
        with self._held_lock():
            for table in tables:
                with self._opened(library, table) as opened:
                    _take_out(opened)
                    opened.commit()

    @contextmanager
    def _opened(self, library: ModuleType, table: Table) -> Iterator[OpenTable]:
        kind = library.Table if self.family == "IPv4" else library.Table6
        # The library keeps a table once opened, with the rules of that moment and of that network namespace.
        kind._cache.pop(table, None)  # noqa: SLF001
        try:
            opened = kind(table, autocommit=False)
        except library.IPTCError as error:
            raise NftFailed(f"legacy table {table} of {self.family}: {error}; kepd needs CAP_NET_RAW") from error
        try:
            yield opened
        except library.IPTCError as error:
            raise NftFailed(f"legacy table {table} of {self.family}: {error}; kepd tries again") from error
        finally:
            opened.close()
            kind._cache.pop(table, None)  # noqa: SLF001

    @contextmanager
    def _held_lock(self) -> Iterator[None]:
        """The same lock that the programs take; the library takes none."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until_s = time.monotonic() + _LOCK_WITHIN_S
            while not _locks(descriptor):
                if time.monotonic() >= until_s:
                    raise LockHeld(f"another program holds {self._lock}; the legacy tables are cleaned later")
                time.sleep(_LOCK_STEP_S)
            yield
        finally:
            os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _targets(opened: OpenTable, chain: str) -> Iterator[str]:
    entry = opened.first_rule(chain)
    while entry:
        yield (opened.get_target(entry) or b"").decode()
        entry = opened.next_rule(entry)


def _take_out(opened: OpenTable) -> None:
    """Jumps first: a chain that anybody leads to cannot go."""
    chains = [chain.name for chain in opened.chains]
    own = [chain for chain in chains if is_ours(chain)]
    for chain in chains:
        if chain not in own:
            _drop_jumps(opened, chain)
    for chain in own:
        opened.flush_entries(chain)
    for chain in own:
        opened.delete_chain(chain)


def _drop_jumps(opened: OpenTable, chain: str) -> None:
    """From the last to the first, so that the numbers of those that remain to be dropped stay right."""
    numbers = [number for number, target in enumerate(_targets(opened, chain)) if is_ours(target)]
    for number in reversed(numbers):
        _delete_rule(opened, chain, number)


def _delete_rule(opened: OpenTable, chain: str, number: int) -> None:
    """The library deletes rules by comparing them only, and finds none that leads to a chain."""
    if not opened._iptc.iptc_delete_num_entry(chain.encode(), ctypes.c_uint(number), opened._handle):  # noqa: SLF001
        raise NftFailed(f"rule {number + 1} of chain {chain} could not be removed; kepd tries again")
