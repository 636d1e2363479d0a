# SPDX-License-Identifier: Apache-2.0
"""What is in force, on disk: a database that the next process begins with, whatever became of the files meanwhile.

Owns: the database, and that what one look brought is in it whole or not at all. It has Secrets: root alone reads it.
Never: stands between a node and its pods. A database that is torn is put aside and begun anew; one that another kepd or
another program wrote, or another user may write, is left as it is and nothing is remembered; each is a finding. Where
the disk takes nothing, that is logged, and tried again with the next change.
Blocking: one thread at a time.
"""

import dataclasses
import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path

import msgspec
import structlog

from agent.drivers.atomic_files import DIRECTORY_MODE, FILE_MODE
from agent.drivers.manifests.trust import ROOT_ALONE, reason
from agent.model.finding import Finding
from agent.model.manifests.in_force import FileInForce, Key
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder
from agent.objects.decoding import PREPARED, keyed_objects

DATABASE = "objects.db"
"""In the state directory."""
APPLICATION = 0x6B657064
FORMAT = 1
"""A kepd does not read a database whose number is higher than its own."""
TABLES = (
    "CREATE TABLE contents (digest BLOB PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE files (plane TEXT, path BLOB, digest BLOB NOT NULL, keys BLOB NOT NULL, PRIMARY KEY (plane, path))",
    "CREATE TABLE folders (plane TEXT, path BLOB, folder BLOB NOT NULL, PRIMARY KEY (plane, path))",
    "CREATE TABLE planes (plane TEXT PRIMARY KEY, is_whole INTEGER NOT NULL, place INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
UNUSED = "DELETE FROM contents WHERE digest NOT IN (SELECT digest FROM files)"
LOST = "what it remembers of manifests is lost"
OFF = "nothing is remembered: a fault in a manifest may end what it has in force when kepd starts anew"
# YAML ends lines at some of them, and takes none of the others.
ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}
log = structlog.get_logger(plane="daemon")


class Strange(Exception):
    """Another kepd or another program has written it."""


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
        self._file = file
        self._database: sqlite3.Connection | None = None
        self._is_off = False
        self.problems: tuple[Finding, ...] = ()
        self._planes: dict[str, _Plane] = {}
        self._told: dict[str, Mapping[str, FileInForce]] = {}

    def load(self) -> Remembered:
        """What was in force when the last process ended."""
        self._planes, problem = {}, ""
        if os.path.lexists(self._file):
            try:
                self._planes = self._read_planes()
            except Strange as error:
                self._is_off, problem = True, f"{error}; {OFF}"
            except OSError as error:
                self._is_off, problem = True, f"{reason(error)}; {OFF}"
            except sqlite3.OperationalError as error:
                problem = f"cannot be read now: {error}; {LOST}"
                self.close()
            except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
                problem = f"cannot be read: {error}; {LOST}"
                self._put_aside()
        self.problems = (Finding(str(self._file), "", problem),) if problem else ()
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
        if self._is_off or (plane == before and name in self._planes):
            return
        try:
            with self._opened() as database:
                _write(database, name, before, plane)
        except (sqlite3.Error, OSError, Strange) as error:
            log.warning("manifests_not_remembered", file=str(self._file), error=str(error), effect=OFF)
            self.close()
            return
        self._planes[name], self._told[name], self.problems = plane, files, ()

    def close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def _opened(self) -> sqlite3.Connection:
        if self._database is not None:
            return self._database
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
        try:
            ROOT_ALONE.check(self._file.parent.stat(), "its directory")
            ROOT_ALONE.check(os.fstat(handle))
        finally:
            os.close(handle)
        database = sqlite3.connect(self._file, check_same_thread=False)
        try:
            _prepare(database)
        except BaseException:
            database.close()
            raise
        self._database = database
        return database

    def _read_planes(self) -> dict[str, _Plane]:
        try:
            return _planes_in(self._opened())
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        # A disk that takes nothing may still tell what was in force. Without its journal there is what it had last.
        for way in ("mode=ro", "mode=ro&immutable=1"):
            with (
                suppress(sqlite3.OperationalError),
                closing(sqlite3.connect(f"{self._file.as_uri()}?{way}", uri=True)) as database,
            ):
                return _planes_in(database)
        raise sqlite3.OperationalError("its disk is read-only")

    def _put_aside(self) -> None:
        """Keep the torn database for whoever looks into it, and make room for a new one."""
        self.close()
        with suppress(OSError):
            self._file.replace(self._file.with_suffix(".torn"))
        for more in ("-wal", "-shm"):
            Path(f"{self._file}{more}").unlink(missing_ok=True)

    def _row(self, name: str, path: str, file: FileInForce, before: _Plane) -> _Row:
        """A file without complaints as it is; of another one the objects in force alone."""
        known = before.rows.get(path, _Row(b"", frozenset()))
        if not file.has_complaints:
            return _Row(file.content, file.keys)
        if self._told.get(name, {}).get(path) == file:
            return known
        new = _picked(path, file.content, file.keys - file.kept)
        return _Row(_joined({**_picked(path, known.content, file.kept), **new}), file.keys)


def _prepare(database: sqlite3.Connection) -> None:
    (application,), (version,) = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    is_new = not application and not database.execute("SELECT 1 FROM sqlite_master").fetchone()
    if application != APPLICATION and not is_new:
        raise Strange("is a database of another program; move it away")
    if version > FORMAT:
        raise Strange(f"has format {version}, which a newer kepd wrote; this one reads up to {FORMAT}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if is_new:
        with database:
            for statement in ("BEGIN", *TABLES):
                database.execute(statement)


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
