# SPDX-License-Identifier: Apache-2.0
"""As much of nft's language as the structure of our table is written in, for the fake kernel.

Never: understands a rule: it keeps its text. Anything else is refused as nft would.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from agent.model.services.nft_error import RulesRefused
from agent.model.services.nft_table import CLIENTS, LAYOUT, MAPS, TABLE, ChainBody, Content, Data, Family

_FAMILIES: Mapping[str, Family] = {"ip": "IPv4", "ip6": "IPv6"}
_ADD = re.compile(rf"(add|delete) table (ip6?) {TABLE}")
_BLOCK = re.compile(rf"table (ip6?) {TABLE} {{")
_ELEMENTS = re.compile(rf"add element (ip6?) {TABLE} (\w+) {{")
_CHAIN = re.compile(r"  chain (\w+) {")
_MAP = re.compile(r"  (?:map|set) (\w+) {.*}")
_COMMENT = re.compile(r'    comment "([^"]*)"')
_LEADS = re.compile(r"\b(?:goto|jump) (\w+)")


class FakeTable(msgspec.Struct):
    """One table. Mutated by whole transactions alone, which work on a copy."""

    comment: str = ""
    rules: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    hooks: dict[str, str] = msgspec.field(default_factory=dict)
    content: Content = msgspec.field(default_factory=dict)
    clients: Content = msgspec.field(default_factory=lambda: {CLIENTS: {}})
    """Their maps; the data end with milliseconds to live."""

    def copy(self) -> "FakeTable":
        content = {name: dict(elements) for name, elements in self.content.items()}
        clients = {name: dict(entries) for name, entries in self.clients.items()}
        return FakeTable(self.comment, dict(self.rules), dict(self.hooks), content, clients)

    def bodies(self) -> dict[str, ChainBody]:
        """With the texts of the rules where the kernel has expressions."""
        return {
            name: ChainBody(tuple(rule.encode() for rule in rules), self.hooks.get(name, ""))
            for name, rules in self.rules.items()
        }

    @property
    def jumps(self) -> Counter[str]:
        """Chain → how many rules and elements lead to it."""
        by_rules = [one for rules in self.rules.values() for rule in rules for one in _LEADS.findall(rule)]
        by_elements = [one for items in self.content.values() for one in items.values() if isinstance(one, str) and one]
        return Counter((*by_rules, *by_elements))


def read_text(text: str, tables: Mapping[Family, FakeTable]) -> dict[Family, FakeTable]:
    """The tables as they are after the text; raises Refused, and the old ones hold."""
    after = dict(tables)
    lines = iter(text.splitlines())
    for line in lines:
        if not line:
            continue
        if found := _ADD.fullmatch(line):
            family = _FAMILIES[found[2]]
            if found[1] == "delete":
                del after[family]
            else:
                after.setdefault(family, FakeTable())
        elif found := _BLOCK.fullmatch(line):
            family = _FAMILIES[found[1]]
            after[family] = after.get(family, FakeTable()).copy()
            _read_block(lines, after[family])
        elif found := _ELEMENTS.fullmatch(line):
            _add_drops(lines, found[2], after[_FAMILIES[found[1]]])
        else:
            raise _refused(line)
    return after


def _read_block(lines: Iterator[str], table: FakeTable) -> None:
    chain = ""
    for line in lines:
        if line == "}":
            return
        if found := _CHAIN.fullmatch(line):
            chain = found[1]
            table.rules.setdefault(chain, ())
        elif found := _MAP.fullmatch(line):
            if found[1] in MAPS:
                table.content.setdefault(found[1], {})
        elif chain == LAYOUT and (found := _COMMENT.fullmatch(line)):
            table.comment = found[1]
        elif line.startswith("    type "):
            table.hooks[chain] = line.strip().rstrip(";")
        elif line.startswith("    "):
            table.rules[chain] += (line.strip(),)
    raise _refused("end of file")


def _add_drops(lines: Iterator[str], name: str, table: FakeTable) -> None:
    if name not in table.content:
        raise _refused(f"map {name}")
    elements: dict[bytes, Data] = table.content[name]
    for line in lines:
        if line == "}":
            return
        key, _, verdict = line.strip().rstrip(",").partition(" : ")
        if verdict != "drop":
            raise _refused(line)
        elements[_key(key, MAPS[name].key)] = ""
    raise _refused("end of file")


def _key(written: str, parts: tuple[str, ...]) -> bytes:
    pieces = []
    for part, piece in zip(parts, written.split(" . "), strict=True):
        match part:
            case "address":
                pieces.append(ipaddress.ip_address(piece).packed)
            case "proto":
                pieces.append(bytes([int(piece), 0, 0, 0]))
            case _:
                pieces.append(int(piece).to_bytes(2, "big") + bytes(2))
    return b"".join(pieces)


def _refused(where: str) -> RulesRefused:
    return RulesRefused(f"nft refused the table's text: Error: syntax error, at {where.strip()!r}; nothing was changed")
