# SPDX-License-Identifier: Apache-2.0
"""The database of the state directory, which outlives the process: its file, its form, and what becomes of a bad one.

Owns: the connection. Transactions are one after the other, whichever thread has one, and on the disk when they end.
Never: stands between a node and its pods. A database that is torn is put aside and begun anew; one that another kepd or
another program wrote, or another user may write, is left as it is and nothing is written. Root alone reads it.
Blocking.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec

from agent.drivers.atomic_files import DIRECTORY_MODE, FILE_MODE
from agent.drivers.manifests.trust import ROOT_ALONE, reason

DATABASE = "objects.db"
"""In the state directory."""
APPLICATION = 0x6B657064

Result = TypeVar("Result")


class Strange(Exception):
    """Another kepd or another program has written it."""


class Database:
    def __init__(self, file: Path, version: int, tables: tuple[str, ...]) -> None:
        """`version` is of the form that `tables` make: a kepd reads none whose number is higher than its own."""
        self.file = file
        self.problem = ""
        """Why it could not be read; empty: it could, or there is none yet."""
        self.is_off = False
        """It is not ours to write."""
        self._version, self._tables = version, tables
        self._connection: sqlite3.Connection | None = None
        self._lock = Lock()

    def read(self, query: Callable[[sqlite3.Connection], Result], nothing: Result) -> Result:
        """`nothing` where there is none, or a problem."""
        self.problem = ""
        if not os.path.lexists(self.file):
            return nothing
        with self._lock:
            try:
                return self._read(query)
            except Strange as error:
                self.is_off, self.problem = True, str(error)
            except OSError as error:
                self.is_off, self.problem = True, reason(error)
            except sqlite3.OperationalError as error:
                self.problem = f"cannot be read now: {error}"
                self._close()
            except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
                self.problem = f"cannot be read: {error}"
                self._put_aside()
        return nothing

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing. Raises OSError, Strange and sqlite3.Error."""
        with self._lock:
            try:
                with self._opened() as connection:
                    yield connection
            except (OSError, Strange, sqlite3.Error):
                self._close()
                raise

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
        try:
            ROOT_ALONE.check(self.file.parent.stat(), "its directory")
            ROOT_ALONE.check(os.fstat(handle))
        finally:
            os.close(handle)
        connection = sqlite3.connect(self.file, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (application,), (version,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        is_new = not application and not connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        if application != APPLICATION and not is_new:
            raise Strange("is a database of another program; move it away")
        if version > self._version:
            raise Strange(f"has format {version}, which a newer kepd wrote; this one reads up to {self._version}")
        (checked,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if checked != "ok":
            # Else a page that nobody reads would refuse every write.
            raise sqlite3.DatabaseError(checked)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        form = (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {self._version}")
        with connection:
            for statement in ("BEGIN", *self._tables, *form):
                connection.execute(statement)

    def _read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return query(self._opened())
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        # A disk that takes nothing may still tell what was there. Without its journal there is what it had last.
        for way in ("mode=ro", "mode=ro&immutable=1"):
            with (
                suppress(sqlite3.OperationalError),
                closing(sqlite3.connect(f"{self.file.as_uri()}?{way}", uri=True)) as connection,
            ):
                return query(connection)
        raise sqlite3.OperationalError("its disk is read-only")

    def _put_aside(self) -> None:
        """Keep the torn database for whoever looks into it, and make room for a new one."""
        self._close()
        with suppress(OSError):
            self.file.replace(self.file.with_suffix(".torn"))
        for more in ("-wal", "-shm"):
            Path(f"{self.file}{more}").unlink(missing_ok=True)
