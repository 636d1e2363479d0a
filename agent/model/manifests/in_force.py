# SPDX-License-Identifier: Apache-2.0
"""Which objects of manifest files are in force.

An object in force stays until a file without fault, that can be read, no longer names it: a fault keeps the last good
version, and of two objects with one name the one in force stays; else the first file's counts. Planes whose objects
stand for themselves read their files by this; what outlives the process is told by `FileInForce`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from agent.model.finding import Finding

Key = tuple[str, str, str]
"""Kind, namespace, name."""
MOST_NAMED = 3


class Placed(Protocol):
    @property
    def where(self) -> str: ...


T = TypeVar("T", bound=Placed)


class FileInForce(msgspec.Struct, frozen=True):
    """`keys` are in force because of a file; of those that are `kept` its content has no version without fault. A
    file without complaints is in force as it is."""

    content: bytes
    keys: frozenset[Key]
    kept: frozenset[Key] = frozenset()
    has_complaints: bool = False


class ReadFile(msgspec.Struct, Generic[T], frozen=True):
    """What became of a file. The same content becomes the same, so only a file that changed is read again."""

    content: bytes
    good: Mapping[Key, T]
    findings: tuple[Finding, ...]
    kept: frozenset[Key] = frozenset()


class ReadFiles(msgspec.Struct, Generic[T], frozen=True):
    """All files; `holders` tells by object the file whose version is in force."""

    by_file: Mapping[str, ReadFile[T]] = {}
    holders: Mapping[Key, str] = {}
    findings: tuple[Finding, ...] = ()

    @property
    def chosen(self) -> dict[Key, T]:
        """In the order of files."""
        return {
            key: found
            for path, file in self.by_file.items()
            for key, found in file.good.items()
            if self.holders.get(key) == path
        }

    @property
    def in_force(self) -> dict[str, FileInForce]:
        """By file; one without objects in force is left out."""
        keys: dict[str, set[Key]] = {}
        for key, path in self.holders.items():
            keys.setdefault(path, set()).add(key)
        return {path: _in_force(self.by_file[path], frozenset(own)) for path, own in keys.items()}


def read_files(
    files: Mapping[str, bytes],
    before: ReadFiles[T],
    read: Callable[[str, bytes], tuple[Mapping[Key, T], Iterable[Finding]]],
) -> ReadFiles[T]:
    """`read` takes a file apart: what is without fault in it, and what is wrong."""
    by_file: dict[str, ReadFile[T]] = {}
    findings: list[Finding] = []
    for path in sorted(files):
        last = before.by_file.get(path)
        is_same = last is not None and last.content == files[path]
        by_file[path] = last if is_same and last is not None else _read(path, files[path], before, read)
        findings += by_file[path].findings
    holders = {key: path for key, path in before.holders.items() if path in by_file and key in by_file[path].good}
    for path, file in by_file.items():
        for key, found in file.good.items():
            if (holder := holders.setdefault(key, path)) != path:
                text = f"{told(key)} is already in {by_file[holder].good[key].where}; this one is ignored"
                findings.append(Finding(found.where, "metadata.name", text))
    return ReadFiles(by_file, holders, tuple(findings))


def told(key: Key) -> str:
    return f"{key[0]} {'/'.join(filter(None, key[1:]))}"


def _read(
    path: str,
    content: bytes,
    before: ReadFiles[T],
    read: Callable[[str, bytes], tuple[Mapping[Key, T], Iterable[Finding]]],
) -> ReadFile[T]:
    good, found = read(path, content)
    findings, last = tuple(found), before.by_file.get(path)
    if last is not None and last.good and not content.strip():
        findings = (Finding(path, "", "is empty; what it had ends when the file is removed"),)
    if not findings or last is None:
        return ReadFile(content, good, findings)
    kept = {key: item for key, item in last.good.items() if key not in good and before.holders.get(key) == path}
    if kept:
        more = f" and {len(kept) - MOST_NAMED} more" if len(kept) > MOST_NAMED else ""
        text = f"the last good version of {', '.join(map(told, list(kept)[:MOST_NAMED]))}{more} stays in force"
        findings += (Finding(path, "", text),)
    return ReadFile(content, {**good, **kept}, findings, frozenset(kept))


def _in_force(file: ReadFile[T], keys: frozenset[Key]) -> FileInForce:
    return FileInForce(file.content, keys, keys & file.kept, bool(file.findings) or len(keys) < len(file.good))
