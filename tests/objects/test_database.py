# SPDX-License-Identifier: Apache-2.0
"""The database of the state directory under kills, tears and other versions of kepd, in random order."""

import os
import random
import signal
import warnings
from pathlib import Path

import pytest

from agent.objects.run.database import Database

ROWS = 5
TABLES = ("CREATE TABLE IF NOT EXISTS words (number INTEGER PRIMARY KEY, turn INTEGER, text TEXT)",)


class History:
    """What a node goes through. `least` and `most` turns may be on the disk: what was acknowledged is, and the next one
    may be."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.file = folder / "objects.db"
        self.chance = random.Random(seed)
        self.least = self.most = 0

    def kill(self) -> None:
        """A process that writes turn after turn is killed after some of them, wherever it is then."""
        told, tells = os.pipe()
        with warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if child == 0:
            database = Database(self.file, 1, TABLES)
            for turn in range(self.most + 1, self.most + 100):
                self.write(database, turn)
                os.write(tells, b".")
            os._exit(0)
        os.close(tells)
        acknowledged = len(os.read(told, self.chance.randrange(1, 20)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(told, 100):
            acknowledged += len(more)
        os.close(told)
        self.least, self.most = self.most + acknowledged, self.most + acknowledged + 1

    def write(self, database: Database, turn: int) -> None:
        with database.transaction() as connection:
            for number in range(ROWS):
                connection.execute("REPLACE INTO words VALUES (?, ?, ?)", (number, turn, "x" * (turn % 7 * 1500)))

    def end(self) -> None:
        database = Database(self.file, 1, TABLES)
        self.write(database, self.most + 1)
        database.close()
        self.least = self.most = self.most + 1

    def tear(self) -> None:
        """Kept aside whole, unless nothing was in that page; and nothing stands in the way of the next writes."""
        database = Database(self.file, 1, TABLES)
        before = turns_of(database)
        database.close()
        torn = bytearray(self.file.read_bytes())
        at = self.chance.choice((0, 100, 4096 * self.chance.randrange(1, len(torn) // 4096)))
        torn[at : at + 200] = b"\xff" * 200
        self.file.write_bytes(torn)
        if turns_of(database) != before:
            assert "cannot be read: " in database.problem
            assert self.file.with_suffix(".torn").read_bytes() == torn
        database.close()
        self.end()

    def go_forth_and_back(self) -> None:
        """A newer kepd has it for a while; this one leaves it alone meanwhile."""
        newer = Database(self.file, 2, TABLES)
        with newer.transaction() as connection:
            connection.execute("PRAGMA user_version = 2")
        before = turns_of(newer)
        newer.close()
        older = Database(self.file, 1, TABLES)

        assert (turns_of(older), older.is_off) == (set(), True)
        assert "has format 2, which a newer kepd wrote" in older.problem
        assert turns_of(newer) == before
        with newer.transaction() as connection:
            connection.execute("PRAGMA user_version = 1")
        newer.close()

    def check(self) -> None:
        database = Database(self.file, 1, TABLES)
        turns = turns_of(database)
        database.close()
        (turn,) = turns

        assert self.least <= turn <= self.most, "whole, and nothing that was acknowledged is lost"
        assert not database.problem
        self.least = self.most = turn


def turns_of(database: Database) -> set[int]:
    return database.read(lambda found: {turn for turn, _ in found.execute("SELECT turn, text FROM words")}, set())


@pytest.mark.parametrize("seed", range(20))
def test_what_was_acknowledged_is_there_whole_through_any_history(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    history.end()
    steps = [history.kill, history.kill, history.end, history.tear, history.go_forth_and_back]
    for _ in range(8):
        history.chance.choice(steps)()
        history.check()
