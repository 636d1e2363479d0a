# SPDX-License-Identifier: Apache-2.0
"""What is in force, on disk: what the next process begins with, whatever became of the files meanwhile.

Owns: its tables of the database, and that what one look brought is in them whole or not at all. They have Secrets.
Where the disk takes nothing, that is logged, and tried again with the next change.
Blocking: one thread at a time.
"""

import dataclasses
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from agent.model.finding import Finding
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.source_folder import SourceFolder
from agent.objects.run.database import Database, Strange

FORMAT = 1
TABLES = (
    "CREATE TABLE IF NOT EXISTS manifests (path BLOB PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS manifest_folders (path BLOB PRIMARY KEY, folder BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS looks (is_last INTEGER PRIMARY KEY, settled BLOB NOT NULL, place INTEGER NOT NULL)",
)
LOST = "what it remembers of manifests is lost"
OFF = "nothing is remembered: a fault in a manifest may end what it has in force when kepd starts anew"
log = structlog.get_logger(plane="daemon")


class Remembered(msgspec.Struct, frozen=True):
    """`settled`: planes that knew all that may have been in force."""

    snapshot: ManifestSnapshot = ManifestSnapshot(is_remembered=True)
    settled: frozenset[str] = frozenset()


class _Kept(msgspec.Struct, frozen=True):
    files: Mapping[str, bytes] = {}
    folders: Mapping[str, SourceFolder] = {}
    settled: frozenset[str] = frozenset()
    place: int = 0


NOTHING = _Kept()


class ObjectMemory:
    def __init__(self, file: Path) -> None:
        self._database = Database(file, FORMAT, TABLES)
        self.problems: tuple[Finding, ...] = ()
        self._kept: _Kept = NOTHING

    def load(self) -> Remembered:
        """What was in force when the last process ended."""
        database = self._database
        self._kept = database.read(_kept_in, NOTHING)
        problem = f"{database.problem}; {OFF if database.is_off else LOST}"
        self.problems = (Finding(str(database.file), "", problem),) if database.problem else ()
        snapshot = ManifestSnapshot(
            self._kept.files,
            self.problems,
            folders=self._kept.folders,
            is_remembered=True,
            place=self._kept.place,
        )
        return Remembered(snapshot, self._kept.settled)

    def keep(
        self,
        files: Mapping[str, bytes],
        folders: Mapping[str, SourceFolder],
        place: int = 0,
        settled: frozenset[str] = frozenset(),
    ) -> None:
        """What is in force now. `place` is the inode of the directory. What differs is written."""
        before = self._kept
        own = {path: dataclasses.replace(folder, problems=(), exposed="") for path, folder in folders.items()}
        kept = _Kept(files, own, settled, place)
        if self._database.is_off or (kept == before and not self.problems):
            return
        try:
            with self._database.transaction() as database:
                _write(database, before, kept)
        except (sqlite3.Error, OSError, Strange) as error:
            log.warning("manifests_not_remembered", file=str(self._database.file), error=str(error), effect=OFF)
            return
        self._kept, self.problems = kept, ()

    def close(self) -> None:
        self._database.close()


def _kept_in(database: sqlite3.Connection) -> _Kept:
    files = {os.fsdecode(path): content for path, content in database.execute("SELECT path, content FROM manifests")}
    folders = {
        os.fsdecode(path): dataclasses.replace(msgspec.json.decode(encoded, type=SourceFolder), path=os.fsdecode(path))
        for path, encoded in database.execute("SELECT path, folder FROM manifest_folders")
    }
    settled, place = database.execute("SELECT settled, place FROM looks").fetchone() or (b"[]", 0)
    return _Kept(files, folders, msgspec.json.decode(settled, type=frozenset[str]), place)


def _write(database: sqlite3.Connection, before: _Kept, kept: _Kept) -> None:
    for path, content in kept.files.items():
        if before.files.get(path) != content:
            database.execute("REPLACE INTO manifests VALUES (?, ?)", (os.fsencode(path), content))
    for path, folder in kept.folders.items():
        if before.folders.get(path) != folder:
            encoded = msgspec.json.encode(dataclasses.replace(folder, path=""))
            database.execute("REPLACE INTO manifest_folders VALUES (?, ?)", (os.fsencode(path), encoded))
    for table, gone in (
        ("manifests", before.files.keys() - kept.files.keys()),
        ("manifest_folders", before.folders.keys() - kept.folders.keys()),
    ):
        doomed = [(os.fsencode(path),) for path in gone]
        database.executemany(f"DELETE FROM {table} WHERE path = ?", doomed)  # noqa: S608 - ours
    database.execute("REPLACE INTO looks VALUES (1, ?, ?)", (msgspec.json.encode(sorted(kept.settled)), kept.place))
