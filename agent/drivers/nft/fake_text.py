# SPDX-License-Identifier: Apache-2.0
"""As much of nft's language as the structure of our table is written in, for the fake kernel.

Owns: reading `add table`, `delete table`, a table's block with its chains and maps, and `add element` with `drop`.
Never: understands a rule: it counts them, and which chains they lead to. Anything else is refused as nft would.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from agent.model.nft_error import Refused
from agent.model.nft_table import LAYOUT, MAPS, TABLE, Content, Data, Family

__all__ = ["read_text"]

_FAMILIES: Mapping[str, Family] = {"ip": "IPv4", "ip6": "IPv6"}
_ADD = re.compile(rf"(add|delete) table (ip6?) {TABLE}")
_BLOCK = re.compile(rf"table (ip6?) {TABLE} {{")
_ELEMENTS = re.compile(rf"add element (ip6?) {TABLE} (\w+) {{")
_CHAIN = re.compile(r"  chain (\w+) {")
_MAP = re.compile(r"  (?:map|set) (\w+) {.*}")
_COMMENT = re.compile(r'    comment "([^"]*)"')
_LEADS = re.compile(r"\b(?:goto|jump) (\w+)")

Table = TypeVar("Table")
MakeTable = Callable[[str, dict[str, int], dict[str, int], Content], Table]


def read_text(text: str, tables: Mapping[Family, Table], make: MakeTable[Table]) -> dict[Family, Table]:
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
                after.setdefault(family, make("", {}, {}, {}))
        elif found := _BLOCK.fullmatch(line):
            after[_FAMILIES[found[1]]] = _block(lines, make)
        elif found := _ELEMENTS.fullmatch(line):
            _add_drops(lines, found[2], after[_FAMILIES[found[1]]])
        else:
            raise _refused(line)
    return after


def _block(lines: Iterator[str], make: MakeTable[Table]) -> Table:
    comment = ""
    rules: dict[str, int] = {}
    jumps: dict[str, int] = {}
    content: Content = {}
    chain = ""
    for line in lines:
        if line == "}":
            return make(comment, rules, jumps, content)
        if found := _CHAIN.fullmatch(line):
            chain = found[1]
            rules[chain] = 0
        elif found := _MAP.fullmatch(line):
            if found[1] in MAPS:
                content[found[1]] = {}
        elif chain == LAYOUT and (found := _COMMENT.fullmatch(line)):
            comment = found[1]
        elif line.startswith("    ") and not line.startswith("    type "):
            rules[chain] += 1
            for target in _LEADS.findall(line):
                jumps[target] = jumps.get(target, 0) + 1
    raise _refused("end of file")


def _add_drops(lines: Iterator[str], name: str, table: object) -> None:
    content: Content = getattr(table, "content", {})
    if name not in content:
        raise _refused(f"map {name}")
    elements: dict[bytes, Data] = content[name]
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


def _refused(where: str) -> Refused:
    return Refused(f"nft refused the table's text: Error: syntax error, at {where.strip()!r}; nothing was changed")
