# SPDX-License-Identifier: Apache-2.0
"""A kernel that takes our texts: whole transactions or nothing, and it refuses what the real one refuses."""

import asyncio
import copy
import re
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address

from agent.model.services.nft_error import NftFailed, OutcomeUnknown, RulesRefused
from agent.model.services.nft_table import SetChange
from agent.policies.rules.table import GUARD, TABLE

LINE = re.compile(r"(add|delete|flush) (table|counter|map|set|chain|rule|element) inet (\S+) ?(\S*) ?(.*)")


@dataclass
class State:
    """None of a table that is not there."""

    maps: dict[str, dict[str, str]] = field(default_factory=dict)
    sets: dict[str, set[str]] = field(default_factory=dict)
    chains: dict[str, list[str]] = field(default_factory=dict)


class Died(BaseException):
    """kepd is no more."""


def taken(before: State | None, text: str) -> State | None:
    """What a transaction makes of it. Raises RulesRefused."""
    state = copy.deepcopy(before)
    for line in filter(None, text.splitlines()):
        found = LINE.fullmatch(line)
        if found is None:
            raise RulesRefused(f"no such line: {line}")
        verb, what, table, *rest = found.groups()
        if table != GUARD:
            state = _line(state, verb, what, *rest)
    return state


def guarded(before: bool, text: str) -> bool:
    """Whether there is a guard after a transaction."""
    lines = [line for line in text.splitlines() if f" {GUARD}" in line]
    return "delete table" not in lines[-1] if lines else before


def _line(state: State | None, verb: str, what: str, name: str, rest: str) -> State | None:
    if what == "table":
        return None if verb == "delete" else state or State()
    assert state is not None, "there is no table"
    match verb, what:
        case "add", "map":
            state.maps.setdefault(name, {})
        case "add", "set":
            state.sets.setdefault(name, set())
        case "add", "chain":
            state.chains.setdefault(name, [])
        case "add", "rule":
            for word in re.findall(r"@(\w+)|(?:jump|goto) (\w+)", rest):
                _known(state, word[0] or word[1])
            state.chains[name].append(rest)
        case "flush", "chain":
            state.chains[name].clear()
        case "delete", ("chain" | "set"):
            if what == "chain":
                state.chains[name].clear()
            _unused(state, name)
            del (state.chains if what == "chain" else state.sets)[name]
        case _, "element":
            _elements(state, verb, name, [one.strip() for one in rest.strip("{} ").split(",")])
    return state


def _known(state: State, name: str) -> None:
    if not any(name in one for one in (state.maps, state.sets, state.chains)):
        raise RulesRefused(f"{name} is not there")


def _unused(state: State, name: str) -> None:
    texts = [*(rule for rules in state.chains.values() for rule in rules)]
    texts += [chain for one in state.maps.values() for chain in one.values()]
    if any(name in re.findall(r"\w+", text) for text in texts):
        raise RulesRefused(f"{name} is in use")


def _elements(state: State, verb: str, name: str, listed: list[str]) -> None:
    for one in listed:
        key, is_map, chain = one.partition(" : goto ")
        held = state.maps[name] if name in state.maps else state.sets[name]
        if verb == "delete":
            if key not in held:
                raise RulesRefused(f"{key} is not in {name}")
            held.pop(key) if isinstance(held, dict) else held.remove(key)
        elif isinstance(held, dict):
            _known(state, chain)
            if is_map and held.setdefault(key, chain) != chain:
                raise RulesRefused(f"{key} is in {name} already")
        else:
            held.add(key)


def _told(one: SetChange, key: bytes, chain: str | None) -> str:
    size, words = 4 if one.family == "IPv4" else 16, []
    for part in one.layout.key:
        piece, key = key[: size if part == "address" else 4], key[size if part == "address" else 4 :]
        match part:
            case "address":
                words.append(str(ip_address(piece)))
            case "proto":
                words.append({6: "tcp", 17: "udp", 132: "sctp"}[piece[0]])
            case _:
                words.append(str(int.from_bytes(piece[:2], "big")))
    assert not key
    return " . ".join(words) + (f" : goto {chain}" if chain is not None else "")


class FakeTable:
    """`fails` is how often the next loads are refused, `refuses` words that no text may have;
    `dies` a number of a load, and whether before or after it."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.has_guard = False
        self.loads: list[str] = []
        self.fails = 0
        self.refuses: tuple[str, ...] = ()
        self.is_unknown = False
        self.dies: tuple[int, str] | None = None
        self.counters: dict[str, int] = {}
        self.touched: asyncio.Queue[str] = asyncio.Queue()
        self.after_load = lambda: None

    async def load(self, text_of_table: str) -> None:
        await asyncio.sleep(0)
        self.loads.append(text_of_table)
        if self.dies == (len(self.loads), "before"):
            raise Died
        if self.fails or any(word in text_of_table for word in self.refuses):
            self.fails = max(self.fails - 1, 0)
            raise RulesRefused("nft refused the table's text: no memory; nothing was changed")
        if self.state is not None and f"delete table inet {TABLE}\n" in text_of_table and "add map" in text_of_table:
            assert self.has_guard, "the table was made anew without a guard"
        self.state = taken(self.state, text_of_table)
        self.has_guard = guarded(self.has_guard, text_of_table)
        self.after_load()
        if self.dies == (len(self.loads), "after"):
            raise Died
        if self.is_unknown:
            self.is_unknown = False
            raise OutcomeUnknown("nft gave no answer")

    async def add_chains(self, names: Iterable[str]) -> None:
        if lines := [f"add chain inet t {name}" for name in names]:
            await self.load("\n".join(lines))

    async def change(self, changes: Iterable[SetChange], chains: Iterable[str], sets: Iterable[str]) -> None:
        """As lines, whose elements are read back from the kernel's bytes."""
        lines = []
        for verb in ("delete", "add"):
            for one in changes:
                pairs = [(key, None) for key in one.gone] if verb == "delete" else one.new
                words = [_told(one, key, chain if isinstance(chain, str) else None) for key, chain in pairs]
                lines += [f"{verb} element inet t {one.layout.name} {{ {', '.join(words)} }}"] if words else []
        lines += [f"delete chain inet t {name}" for name in chains] + [f"delete set inet t {name}" for name in sets]
        await self.load("\n".join(lines))

    async def exists(self, *others: str) -> bool:
        return self.state is not None or (self.has_guard and GUARD in others)

    async def counter(self, name: str) -> int:
        return self.counters.get(name, 0)

    async def changes(self) -> AsyncGenerator[str, None]:
        while True:
            yield await self.touched.get()


class FakeBridge:
    """A kernel that takes the text of the table of bridges, or says why not; elements by set."""

    def __init__(self, refusal: NftFailed | None = None) -> None:
        self.refusal = refusal
        self.loads: list[str] = []
        self.sets: dict[str, set[bytes]] | None = None
        self.touched: asyncio.Queue[str] = asyncio.Queue()

    async def load(self, text: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.loads.append(text)
        self.sets = {} if "add chain" in text else None
        for name, listed in re.findall(r"add element bridge \S+ (\S+) \{ (.*) \}", text):
            assert self.sets is not None
            pairs = [one.split(" . ") for one in listed.replace('"', "").split(", ")]
            self.sets[name] = {link.encode().ljust(16, b"\0") + _packed(rest) for link, *rest in pairs}

    async def change(self, changes: Iterable[SetChange], *_: object) -> None:
        for one in changes:
            assert self.sets is not None
            held = self.sets.setdefault(one.layout.name, set())
            held.difference_update(one.gone)
            held.update(key for key, _ in one.new)

    async def exists(self, *_: str) -> bool:
        return self.sets is not None

    async def counter(self, _: str) -> int:
        return 0

    async def changes(self) -> AsyncGenerator[str, None]:
        while True:
            yield await self.touched.get()


def _packed(rest: list[str]) -> bytes:
    return b"".join(bytes.fromhex(one[2:]) if one.startswith("0x") else ip_address(one).packed for one in rest)
