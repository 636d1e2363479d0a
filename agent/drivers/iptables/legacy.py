# SPDX-License-Identifier: Apache-2.0
"""The legacy tables of one family, read and cleaned through python-iptables: no program of the legacy variant has to be
installed for that, and whoever uses legacy tables from within a container installs none.

Owns: finding the library (the extra `legacy`, or Debian's python3-iptables), which tables are in use, who jumps where,
and taking our chains out of a table in one replacement, under the lock of iptables.
Never: opens a table that the kernel does not name as in use, for opening one creates it; never reads targets by the
library's Rule, which opens all tables; never writes a rule.
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
from typing import Any

import structlog

from agent.drivers.iptables.variant import legacy_names
from agent.model.services.iptables_rules import TABLES, Table, is_ours, rivals_in
from agent.model.services.nft_error import LockHeld, NftFailed, NftMissing, NotPermitted
from agent.model.services.nft_table import Family

log = structlog.get_logger(plane="services")

_DEBIAN = "/usr/lib/python3/dist-packages"
NET_RAW = 13
_LOCK = Path("/run/xtables.lock")
_LOCK_WITHIN_S, _LOCK_STEP_S = 2.0, 0.2
Jumps = Mapping[Table, Mapping[str, Sequence[str]]]
"""Table → chain → the chains its rules lead to."""


OpenTable = Any
"""The library has no types."""


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


def has_net_raw(status: Path = Path("/proc/self/status")) -> bool:
    """The kernel asks for that right before it shows a legacy table."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> NET_RAW & 1)


class LegacyTables:
    """One family. `inside` is for tests, whose tables are in another network namespace."""

    def __init__(
        self,
        family: Family,
        *,
        library: Callable[[], ModuleType | None] = find_library,
        inside: Callable[[Callable[[], Any]], Any] = lambda work: work(),
        in_use: Callable[[Family], str] = legacy_names,
        lock: Path = _LOCK,
    ) -> None:
        self.family: Family = family
        self._library = library
        self._inside = inside
        self._in_use = in_use
        self._lock = lock

    def in_use(self) -> Sequence[Table]:
        """As the kernel says; asking this creates nothing."""
        names = self._in_use(self.family).split()
        return [table for table in TABLES if table in names]

    async def rivals(self) -> Sequence[str]:
        """Chains of other programs for Services."""
        return rivals_in(await self.read(), f"the legacy tables of {self.family}")

    async def read(self) -> Jumps:
        tables = self.in_use()
        if not tables:
            return {}
        library = self._needed(tables)
        jumps: Jumps = await asyncio.to_thread(
            self._inside, lambda: {table: self._jumps(library, table) for table in tables}
        )
        return jumps

    async def remove(
        self, is_meant: Callable[[Collection[str]], bool], goes: Callable[[str], bool] = is_ours
    ) -> Sequence[Table]:
        """Chains for Services and the jumps to them, from tables whose chains are meant. The tables that had any."""
        found = [table for table, chains in (await self.read()).items() if is_meant(chains)]
        if found:
            library = self._needed(found)
            await asyncio.to_thread(self._inside, lambda: self._clean(library, found, goes))
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
            return {chain: [target for _, target in _rules(opened, chain)] for chain in chains}

    def _clean(self, library: ModuleType, tables: Sequence[Table], goes: Callable[[str], bool]) -> None:
        with self._held_lock():
            for table in tables:
                with self._opened(library, table) as opened:
                    _take_out(opened, goes)
                    opened.commit()

    @contextmanager
    def _opened(self, library: ModuleType, table: Table) -> Iterator[OpenTable]:
        opened = None
        try:
            opened = (library.Table if self.family == "IPv4" else library.Table6)(table, autocommit=False)
            # The library keeps a table once opened, with the rules of that moment and of that network namespace.
            opened.refresh()
            yield opened
        except library.IPTCError as error:
            if not has_net_raw():
                text = (
                    f"legacy table {table} of {self.family} is not looked at: that takes CAP_NET_RAW, which kepd lacks"
                )
                raise NotPermitted(f"{text}; rules of others in it are neither seen nor taken away") from error
            raise NftFailed(f"legacy table {table} of {self.family}: {error}; kepd tries again") from error
        finally:
            if opened is not None:
                opened.close()

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


def _rules(opened: OpenTable, chain: str) -> Iterator[tuple[Any, str]]:
    """Each with the chain that it leads to."""
    entry = opened.first_rule(chain)
    while entry:
        yield entry, (opened.get_target(entry) or b"").decode()
        entry = opened.next_rule(entry)


def _take_out(opened: OpenTable, goes: Callable[[str], bool]) -> None:
    """Jumps first: a chain that anybody leads to cannot go."""
    chains = [chain.name for chain in opened.chains]
    own = [chain for chain in chains if goes(chain)]
    for chain in chains:
        if chain not in own:
            _drop_jumps(opened, chain, goes)
    for chain in own:
        opened.flush_entries(chain)
    for chain in own:
        opened.delete_chain(chain)


def _drop_jumps(opened: OpenTable, chain: str, goes: Callable[[str], bool]) -> None:
    """From the last to the first, so that the numbers of those that remain to be dropped stay right.

    The library deletes a rule by comparing it, and finds none that leads to a chain. So the rule is first replaced by
    what it is without a target: that is what its own bytes say, as they name no chain.
    """
    for number, (entry, target) in reversed(list(enumerate(_rules(opened, chain)))):
        if goes(target):
            same = ctypes.string_at(ctypes.addressof(entry), entry.next_offset)
            opened.replace_entry(chain, ctypes.create_string_buffer(same, len(same)), number)
            opened.delete_entry(chain, ctypes.create_string_buffer(same, len(same)), b"\xff" * len(same))
