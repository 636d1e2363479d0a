# SPDX-License-Identifier: Apache-2.0
"""What a configuration key is, and the flat list of all: checks, origins, schema and reference are made from it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import TypeVar

from agent.config.kinds import ValueKind

Value = TypeVar("Value")

Words = tuple[str, ...]
Pairs = tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """How one key is read and described. `derived` says where an empty default gets its value from."""

    kind: ValueKind
    doc: str
    derived: str
    needs_restart: bool


def key(kind: ValueKind, default: Value, doc: str, derived: str = "") -> Value:
    return _field(default, Key(kind, doc, derived, needs_restart=False))


def restart(kind: ValueKind, default: Value, doc: str, derived: str = "") -> Value:
    """The field of a key that only a new process reads; a reload names it and keeps the old value."""
    return _field(default, Key(kind, doc, derived, needs_restart=True))


def _field(default: Value, key: Key) -> Value:
    return field(default_factory=lambda: default, metadata={"key": key})


@dataclass(frozen=True, slots=True)
class KeyEntry:
    path: str
    key: Key
    default: object
    fields: tuple[str, ...]

    @property
    def environment_name(self) -> str:
        """`images.maxParallelPulls` as the environment spells it: `KEPD_IMAGES__MAX_PARALLEL_PULLS`."""
        return "KEPD_" + "__".join(self.fields).upper()


def _camel(name: str) -> str:
    """`max_parallel_pulls` as documents spell it: `maxParallelPulls`; acronyms at the end stay capital."""
    head, *rest = name.split("_")
    return head + "".join(ACRONYMS.get(word, word.capitalize()) for word in rest)


ACRONYMS = MappingProxyType(
    {"ca": "CA", "dns": "DNS", "tls": "TLS", "cidrs": "CIDRs", "oom": "OOM", "ips": "IPs", "qps": "QPS", "ttl": "TTL"}
)


def _walk(section: object, path: str, names: tuple[str, ...]) -> Iterator[KeyEntry]:
    for entry in fields(section):  # type: ignore[arg-type]  # a dataclass, as its declaration says
        below = f"{path}.{_camel(entry.name)}" if path else _camel(entry.name)
        default, key = getattr(section, entry.name), entry.metadata.get("key")
        if key is None:
            yield from _walk(default, below, (*names, entry.name))
        else:
            yield KeyEntry(below, key, default, (*names, entry.name))


@cache
def all_keys(document: type) -> MappingProxyType[str, KeyEntry]:
    return MappingProxyType({entry.path: entry for entry in _walk(document(), "", ())})
