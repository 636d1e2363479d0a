# SPDX-License-Identifier: Apache-2.0
"""FX-7: a container cannot make lines of its log that look as if the runtime, or another stream, had written them."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.api.log_lines import ContainerLog
from agent.pods.run.disk.files import _last_lines

STAMP = "2026-01-01T00:00:00.000000000Z"
HEAD = f"{STAMP} stdout F "
FORGED = "2026-01-01T00:00:00.000000000Z stderr F all is well"
BREAKS = "\r", "\r\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"


def test_a_line_ends_at_a_line_feed_and_nowhere_else(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    texts = [f"before{sign}{FORGED}" for sign in BREAKS]
    log.write_bytes("".join(f"{HEAD}{text}\n" for text in texts).encode())
    with closing(ContainerLog()) as reader:
        lines = reader.read(log)

    assert [line.decode() for line in lines] == [f"{text}\n" for text in texts]
    for text in texts:
        assert _last_lines(f"{HEAD}{text}\n", 10, 4096) == f"{text}\n"


def test_parts_of_a_line_are_put_together_and_half_a_line_waits(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    partial = HEAD.replace(" F ", " P ")
    log.write_bytes(f"{partial}a\r\n{HEAD}b\n{HEAD}c".encode())
    with closing(ContainerLog(has_timestamps=True)) as reader:
        lines = reader.read(log)
        with log.open("ab") as more:
            more.write(b"d\n")
        rest = reader.read(log)

    assert b"".join(lines) == f"{STAMP} a\rb\n".encode()
    assert rest == [f"{STAMP} cd\n".encode()]


@pytest.mark.parametrize("count", [1, 2, 30, 20_000, 50_000])
def test_the_last_lines_are_those_of_the_file_however_long_it_is(tmp_path: Path, count: int) -> None:
    """Only the first 256 KiB were looked at, and all that follows was printed."""
    log = tmp_path / "0.log"
    log.write_text("".join(f"{HEAD}{place}\n" for place in range(30_000)))
    lines = []
    with closing(ContainerLog(tail=count)) as reader:
        while more := reader.read(log):
            lines += more

    assert [int(line) for line in lines] == list(range(max(30_000 - count, 0), 30_000))


def test_a_line_in_parts_is_one_line_from_the_end(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text(f"{HEAD}x\n{HEAD.replace(' F ', ' P ')}a\n{HEAD}b\n{HEAD}c\n")
    with closing(ContainerLog(tail=2)) as reader:
        lines = reader.read(log)

    assert b"".join(lines) == b"ab\nc\n"


def test_lines_before_a_time_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    stamps = ("2026-01-01T00:00:00.1Z", "2026-01-01T02:00:01.123456789+02:00", "2026-01-01T00:00:02Z")
    log.write_text("".join(f"{stamp} stdout F {place}\n" for place, stamp in enumerate(stamps)))
    since_s = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC).timestamp()
    with closing(ContainerLog(since_s=since_s)) as reader:
        lines = reader.read(log)

    assert lines == [b"1\n", b"2\n"]


def test_a_file_that_is_moved_aside_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    """Who followed a log heard nothing any more after its rotation."""
    log = tmp_path / "0.log"
    log.write_text(f"{HEAD}a\n")
    reader = ContainerLog()
    first = reader.read(log)
    with log.open("a") as old:
        old.write(f"{HEAD}b\n")
    log.rename(tmp_path / "0.log.1")
    log.write_text(f"{HEAD}c\n")
    rest = [reader.read(log), reader.read(log), reader.read(log)]
    reader.close()

    assert (first, rest) == ([b"a\n"], [[b"b\n"], [b"c\n"], []])
