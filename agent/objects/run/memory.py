# SPDX-License-Identifier: Apache-2.0
"""What is in force, on disk: what the next process begins with, whatever became of the files meanwhile.

Owns: its tables of the database, and that what one look brought is in them whole or not at all. They have Secrets.
Where the disk takes nothing, that is logged, and tried again with the next change.
Blocking: one thread at a time.
"""

import dataclasses
import os
import sqlite3
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec
import structlog

from agent.model.finding import Finding
from agent.model.manifests.in_force import FileInForce, Key
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder
from agent.objects.decoding import PREPARED, keyed_objects
from agent.objects.run.database import Database, Strange

FORMAT = 1
TABLES = (
    "CREATE TABLE contents (digest BLOB PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE files (plane TEXT, path BLOB, digest BLOB NOT NULL, keys BLOB NOT NULL, PRIMARY KEY (plane, path))",
    "CREATE TABLE folders (plane TEXT, path BLOB, folder BLOB NOT NULL, PRIMARY KEY (plane, path))",
    "CREATE TABLE planes (plane TEXT PRIMARY KEY, is_whole INTEGER NOT NULL, place INTEGER NOT NULL)",
)
UNUSED = "DELETE FROM contents WHERE digest NOT IN (SELECT digest FROM files)"
LOST = "what it remembers of manifests is lost"
OFF = "nothing is remembered: a fault in a manifest may end what it has in force when kepd starts anew"
# YAML ends lines at some of them, and takes none of the others.
ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}
log = structlog.get_logger(plane="daemon")


class Remembered(msgspec.Struct, frozen=True):
    """`whole`: planes that have told all that they had in force."""

    snapshot: ManifestSnapshot = ManifestSnapshot(is_remembered=True)
    whole: frozenset[str] = frozenset()


class _Row(msgspec.Struct, frozen=True):
    """The text that has a plane's objects of a file, and which they are."""

    content: bytes
    keys: frozenset[Key]


class _Plane(msgspec.Struct, frozen=True):
    rows: Mapping[str, _Row] = {}
    folders: Mapping[str, SourceFolder] = {}
    is_whole: bool = False
    place: int = 0


class ObjectMemory:
    def __init__(self, file: Path) -> None:
        self._database = Database(file, FORMAT, TABLES)
        self.problems: tuple[Finding, ...] = ()
        self._planes: dict[str, _Plane] = {}
        self._told: dict[str, Mapping[str, FileInForce]] = {}

    def load(self) -> Remembered:
        """What was in force when the last process ended."""
        database = self._database
        self._planes = database.read(_planes_in, {})
        problem = f"{database.problem}; {OFF if database.is_off else LOST}"
        self.problems = (Finding(str(database.file), "", problem),) if database.problem else ()
        places = [plane.place for plane in self._planes.values() if plane.place]
        snapshot = ManifestSnapshot(
            dict(_merged(self._planes)),
            self.problems,
            folders={path: folder for plane in self._planes.values() for path, folder in plane.folders.items()},
            is_remembered=True,
            place=places[0] if places else 0,
        )
        return Remembered(snapshot, frozenset(name for name, plane in self._planes.items() if plane.is_whole))

    def keep(
        self, name: str, files: Mapping[str, FileInForce], folders: Mapping[str, SourceFolder], place: int = 0, *,
        is_whole: bool = True,
    ) -> None:  # fmt: skip
        """What the plane `name` has in force now. `place` is the inode of the directory. What differs is written."""
        before = self._planes.get(name, _Plane())
        rows = {path: self._row(name, path, file, before) for path, file in files.items()}
        own = {path: dataclasses.replace(one, problems=(), exposed="") for path, one in folders.items()}
        plane = _Plane(rows, own, is_whole, place)
        if self._database.is_off or (plane == before and name in self._planes):
            return
        try:
            with self._database.transaction() as database:
                _write(database, name, before, plane)
        except (sqlite3.Error, OSError, Strange) as error:
            log.warning("manifests_not_remembered", file=str(self._database.file), error=str(error), effect=OFF)
            return
        self._planes[name], self._told[name], self.problems = plane, files, ()

    def close(self) -> None:
        self._database.close()

    def _row(self, name: str, path: str, file: FileInForce, before: _Plane) -> _Row:
        """A file without complaints as it is; of another one the objects in force alone."""
        known = before.rows.get(path, _Row(b"", frozenset()))
        if not file.has_complaints:
            return _Row(file.content, file.keys)
        if self._told.get(name, {}).get(path) == file:
            return known
        new = _picked(path, file.content, file.keys - file.kept)
        return _Row(_joined({**_picked(path, known.content, file.kept), **new}), file.keys)


def _planes_in(database: sqlite3.Connection) -> dict[str, _Plane]:
    rows: dict[str, dict[str, _Row]] = {}
    files = "SELECT plane, path, content, keys FROM files JOIN contents USING (digest)"
    for name, path, content, keys in database.execute(files):
        row = _Row(content, msgspec.json.decode(keys, type=frozenset[Key]))
        rows.setdefault(name, {})[os.fsdecode(path)] = row
    folders: dict[str, dict[str, SourceFolder]] = {}
    for name, path, encoded in database.execute("SELECT plane, path, folder FROM folders"):
        folder = dataclasses.replace(msgspec.json.decode(encoded, type=SourceFolder), path=os.fsdecode(path))
        folders.setdefault(name, {})[folder.path] = folder
    planes = database.execute("SELECT plane, is_whole, place FROM planes")
    return {
        name: _Plane(rows.get(name, {}), folders.get(name, {}), bool(is_whole), place)
        for name, is_whole, place in planes
    }


def _write(database: sqlite3.Connection, name: str, before: _Plane, plane: _Plane) -> None:
    for path, row in plane.rows.items():
        if before.rows.get(path) != row:
            digest = blake2b(row.content, digest_size=16).digest()
            keys = msgspec.json.encode(sorted(row.keys))
            database.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", (digest, row.content))
            database.execute("REPLACE INTO files VALUES (?, ?, ?, ?)", (name, os.fsencode(path), digest, keys))
    for path, folder in plane.folders.items():
        if before.folders.get(path) != folder:
            encoded = msgspec.json.encode(dataclasses.replace(folder, path=""))
            database.execute("REPLACE INTO folders VALUES (?, ?, ?)", (name, os.fsencode(path), encoded))
    for table, gone in (
        ("files", before.rows.keys() - plane.rows.keys()),
        ("folders", before.folders.keys() - plane.folders.keys()),
    ):
        doomed = [(name, os.fsencode(path)) for path in gone]
        database.executemany(f"DELETE FROM {table} WHERE plane = ? AND path = ?", doomed)  # noqa: S608 - ours
    database.execute("REPLACE INTO planes VALUES (?, ?, ?)", (name, plane.is_whole, plane.place))
    database.execute(UNUSED)


def _merged(planes: Mapping[str, _Plane]) -> Iterator[tuple[str, bytes]]:
    """By file one text for all planes: as it is where it has nothing but what was in force."""
    by_path: dict[str, list[_Row]] = {}
    for plane in planes.values():
        for path, row in plane.rows.items():
            by_path.setdefault(path, []).append(row)
    for path, rows in by_path.items():
        keys = frozenset[Key]().union(*(row.keys for row in rows))
        first = rows[0].content
        PREPARED.prepare(first, path)
        if all(row.content == first for row in rows) and {key for key, _ in keyed_objects(path, first)} == keys:
            yield path, first
        else:
            objects: dict[Key, object] = {}
            for row in rows:
                objects |= _picked(path, row.content, row.keys)
            if objects:
                yield path, _joined(objects)


def _picked(path: str, content: bytes, keys: frozenset[Key]) -> dict[Key, object]:
    """Of two with one key the first counts."""
    picked: dict[Key, object] = {}
    for key, document in keyed_objects(path, content) if keys else ():
        if key in keys:
            picked.setdefault(key, document)
    return picked


def _joined(objects: Mapping[Key, object]) -> bytes:
    texts = (msgspec.json.encode(document).decode().translate(ESCAPED) for document in objects.values())
    return "\n---\n".join(texts).encode()
