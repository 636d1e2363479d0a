# SPDX-License-Identifier: Apache-2.0
"""What a configuration key is, and the flat list of all of them.

Owns: `Key` (kind, text for users, whether a reload applies it), the spelling of keys in documents and environment, and
`all_keys`, from which checks, origins, schema and reference are made.
Never: holds values. document.py declares the keys next to the fields they fill.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import get_args, get_type_hints

from agent.config.kinds import Kind

__all__ = ["Key", "KeyEntry", "all_keys", "restart"]


@dataclass(frozen=True, slots=True)
class Key:
    """How one key is read and described. `derived` says where an empty default gets its value from."""

    kind: Kind
    doc: str
    derived: str = ""
    needs_restart: bool = False


def restart(kind: Kind, doc: str, derived: str = "") -> Key:
    """A key that only a new process reads; a reload names it and keeps the old value."""
    return Key(kind, doc, derived, needs_restart=True)


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key with its place in the document and its default."""

    path: str
    key: Key
    default: object
    fields: tuple[str, ...]

    @property
    def environment_name(self) -> str:
        """`images.maxParallelPulls` as the environment spells it: `KEPD_IMAGES__MAX_PARALLEL_PULLS`."""
        return "KEPD_" + "__".join(self.fields).upper()


def camel(name: str) -> str:
    """`max_parallel_pulls` as documents spell it: `maxParallelPulls`; acronyms at the end stay capital."""
    head, *rest = name.split("_")
    return head + "".join(ACRONYMS.get(word, word.capitalize()) for word in rest)


ACRONYMS = MappingProxyType({"dns": "DNS", "cidrs": "CIDRs", "oom": "OOM", "qps": "QPS"})


def _default(entry: "Field[object]") -> object:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def _walk(section: type, path: str, names: tuple[str, ...]) -> Iterator[KeyEntry]:
    hints = get_type_hints(section, include_extras=True)
    for entry in fields(section):
        below = f"{path}.{camel(entry.name)}" if path else camel(entry.name)
        hint = hints[entry.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _walk(hint, below, (*names, entry.name))
            continue
        key = next(argument for argument in get_args(hint)[1:] if isinstance(argument, Key))
        yield KeyEntry(below, key, _default(entry), (*names, entry.name))


@cache
def all_keys(document: type) -> MappingProxyType[str, KeyEntry]:
    """Every key of the document by its path, in the order of declaration."""
    return MappingProxyType({entry.path: entry for entry in _walk(document, "", ())})
