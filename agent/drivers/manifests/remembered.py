# SPDX-License-Identifier: Apache-2.0
"""What files of manifests have in force, on disk: a file of memory for each, below a folder for each plane.

Owns: that the next process begins with what this one had in force, whatever became of the files meanwhile. A memory
that cannot be read, or that another user may write, is a finding and counts as none. It has Secrets: root reads it
alone. Small until one store has all objects. Blocking.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import structlog

from agent.config.manifest_documents import CLUSTER_KINDS
from agent.config.strict_yaml import UnreadableYaml, parse_documents, plain
from agent.drivers.atomic_files import DIRECTORY_MODE, write_file
from agent.drivers.manifests.trust import ROOT_ALONE, reason
from agent.model.finding import Finding
from agent.model.manifests.in_force import FileInForce, Key
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder

UNKNOWN = "unknown"
"""A file beside the others: there was more than they tell."""
LOST = "what it remembers of manifests is lost"
log = structlog.get_logger(plane="daemon")
Content = Mapping[str, object]
# YAML ends lines at some of them, and takes none of the others.
ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}


class _Memory(msgspec.Struct, frozen=True):
    """Paths as bytes, for names need not be UTF-8."""

    path: bytes
    content: bytes = b""
    folder: SourceFolder | None = None
    place: int = 0
    """Of the directory it lay in."""


class RememberedManifests:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, _Memory] = {}
        self._files: Mapping[str, FileInForce] = {}

    def load(self) -> ManifestSnapshot:
        """What was in force; `is_first` where that may not be all."""
        files: dict[str, bytes] = {}
        folders: dict[str, SourceFolder] = {}
        problems: list[Finding] = []
        self._known, self._files, is_first, place = {}, {}, (self._folder / UNKNOWN).exists(), 0
        try:
            names = sorted(file.name for file in self._folder.iterdir() if file.suffix == ".json")
        except FileNotFoundError:
            names, is_first = [], True
        except OSError as error:
            names = []
            problems.append(Finding(str(self._folder), "", f"{reason(error)}; {LOST}"))
        for name in names:
            try:
                memory = _read(self._folder / name)
            except (OSError, msgspec.MsgspecError) as error:
                why = reason(error) if isinstance(error, OSError) else f"cannot be read: {error}"
                problems.append(Finding(str(self._folder / name), "", f"{why}; {LOST}"))
                continue
            self._known[name] = memory
            path, place = os.fsdecode(memory.path), memory.place
            if memory.folder is not None:
                folders[path] = dataclasses.replace(memory.folder, path=path)
            else:
                files[path] = memory.content
        is_first = is_first or bool(problems)
        return ManifestSnapshot(
            files, tuple(problems), folders=folders, is_first=is_first, is_remembered=True, place=place
        )

    def keep(
        self, files: Mapping[str, FileInForce], folders: Mapping[str, SourceFolder], place: int = 0, *,
        is_whole: bool = True,
    ) -> None:  # fmt: skip
        """Only what differs is written. `place` is the directory's. A failure is logged, and the node goes on."""
        wanted = {_name(path): self._memory(path, file) for path, file in files.items()}
        for path, folder in folders.items():
            own = dataclasses.replace(folder, path="", problems=(), exposed="")
            wanted[_name(path)] = _Memory(os.fsencode(path), folder=own)
        wanted = {name: msgspec.structs.replace(memory, place=place) for name, memory in wanted.items()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
            ROOT_ALONE.check(self._folder.stat())
            if not is_whole:
                write_file(self._folder / UNKNOWN, b"")
            for name, memory in wanted.items():
                if self._known.get(name) != memory:
                    write_file(self._folder / name, msgspec.json.encode(memory))
                    self._known[name] = memory
            for file in [file for file in self._folder.iterdir() if file.name not in wanted]:
                if file.name == UNKNOWN and not is_whole:
                    continue
                file.unlink(missing_ok=True)
                self._known.pop(file.name, None)
            self._files = files
        except OSError as error:
            effect = "a fault in a manifest may end what it has in force when kepd starts anew"
            log.warning("manifests_not_remembered", folder=str(self._folder), error=str(error), effect=effect)

    def _memory(self, path: str, file: FileInForce) -> _Memory:
        """A file without complaints as it is; of another one the objects in force alone."""
        known = self._known.get(_name(path), _Memory(b""))
        if not file.has_complaints:
            return _Memory(os.fsencode(path), file.content)
        if self._files.get(path) == file:
            return known
        found: dict[Key, Content] = {}
        for content, keys in ((file.content, file.keys - file.kept), (known.content, file.kept)):
            for key, document in _objects(path, content):
                if key in keys:
                    found.setdefault(key, document)
        texts = (msgspec.json.encode(document).decode().translate(ESCAPED) for document in found.values())
        return _Memory(os.fsencode(path), "\n---\n".join(texts).encode())


def _read(place: Path) -> _Memory:
    handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as source:
        ROOT_ALONE.check(place.parent.stat(), "its directory")
        ROOT_ALONE.check(os.fstat(handle))
        return msgspec.json.decode(source.read(), type=_Memory)


def _name(path: str) -> str:
    return f"{sha256(os.fsencode(path)).hexdigest()[:32]}.json"


def _objects(path: str, content: bytes) -> Iterator[tuple[Key, Content]]:
    with suppress(UnreadableYaml):
        for tree in parse_documents(content, path)[0]:
            yield from _taken_apart(plain(tree))


def _taken_apart(document: object) -> Iterator[tuple[Key, Content]]:
    """Items of a list of one kind need not repeat it."""
    if not isinstance(document, dict):
        return
    kind, items, metadata = str(document.get("kind") or ""), document.get("items"), document.get("metadata")
    if kind.endswith("List") and isinstance(items, list):
        own = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
        for item in items:
            yield from _taken_apart({**own, **item} if isinstance(item, dict) else item)
        return
    named = metadata if isinstance(metadata, dict) else {}
    namespace = "" if kind in CLUSTER_KINDS else str(named.get("namespace") or "default")
    yield (kind, namespace, str(named.get("name") or "")), document
