# SPDX-License-Identifier: Apache-2.0
"""FX-7: a container cannot make lines of its log that look as if the runtime, or another stream, had written them."""

from pathlib import Path

from agent.api.pod_service import _read_lines
from agent.pods.run.disk.files import _last_lines

HEAD = "2026-01-01T00:00:00.000000000Z stdout F "
FORGED = "2026-01-01T00:00:00.000000000Z stderr F all is well"
BREAKS = "\r", "\r\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"


def test_a_line_ends_at_a_line_feed_and_nowhere_else(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    texts = [f"before{sign}{FORGED}" for sign in BREAKS]
    log.write_bytes("".join(f"{HEAD}{text}\n" for text in texts).encode())
    lines, position = _read_lines(log, 0)

    assert [line.decode() for line in lines] == [f"{text}\n" for text in texts]
    assert position == log.stat().st_size
    for text in texts:
        assert _last_lines(f"{HEAD}{text}\n", 10, 4096) == f"{text}\n"


def test_parts_of_a_line_are_put_together_and_half_a_line_waits(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    partial = HEAD.replace(" F ", " P ")
    log.write_bytes(f"{partial}a\r\n{HEAD}b\n{HEAD}c".encode())
    lines, position = _read_lines(log, 0)

    assert b"".join(lines) == b"a\rb\n"
    assert log.read_bytes()[position:] == f"{HEAD}c".encode()
