# SPDX-License-Identifier: Apache-2.0
"""What people see of names on this node."""

import msgspec


class DnsLine(msgspec.Struct, frozen=True, kw_only=True):
    """An address that is answered at, or a server that is asked."""

    kind: str
    name: str
    zone: str = ""
    state: str = ""
    why: str = ""
    questions_per_second: float = 0.0
    hit_percent: float = 0.0
    milliseconds: float = 0.0
    asked: int = 0
    top_names: tuple[str, ...] = ()
    top_sources: tuple[str, ...] = ()
    memory_bytes: int = 0
    entries: int = 0


class DnsReport(msgspec.Struct, frozen=True):
    lines: tuple[DnsLine, ...]
    problem: str = ""


class NameStep(msgspec.Struct, frozen=True, kw_only=True):
    """One question of a search, and what is known of its answer."""

    name: str
    zone: str = ""
    kind: str = ""
    code: str = ""
    records: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


class NameExplanation(msgspec.Struct, frozen=True):
    steps: tuple[NameStep, ...]
    is_found: bool = False
