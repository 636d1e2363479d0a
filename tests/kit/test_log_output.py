# SPDX-License-Identifier: Apache-2.0
"""A log that cannot be written costs its lines and nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.kit.log_output import LogOutput
from tests.host.process import ITSELF, PROGRAMS, Kepd


def unread_pipe() -> int:
    """One end; the other is open and read by no one."""
    reader, writer = os.pipe()
    os.dup(reader)
    os.close(reader)
    return writer


def test_a_full_disk_costs_lines_and_no_error() -> None:
    out = LogOutput(os.open("/dev/full", os.O_WRONLY))
    for _ in range(3):
        out.write("event=one\n")

    assert out.lost_lines == 3


def test_a_reader_that_is_gone_costs_lines_and_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = LogOutput(writer)
    out.write("event=one\n")

    assert out.lost_lines == 1


def test_a_reader_that_stops_holds_nothing_up_and_hears_whole_lines_again() -> None:
    reader, writer = os.pipe()
    out, line = LogOutput(writer), f"event={'x' * 9000}\n"
    for _ in range(30):
        out.write(line)
    lost = out.lost_lines
    before = os.read(reader, 1 << 20)
    out.write("event=again\n")
    after = os.read(reader, 1 << 20).decode()

    assert lost > 20
    assert before.count(b"\n") == 30 - lost
    assert after in ("\nevent=again\n", "event=again\n")
    assert out.lost_lines == lost


@pytest.fixture
def kepd(short_path: Path, free_port: int) -> Iterator[Kepd]:
    with Kepd(short_path, free_port, prefix=ITSELF) as daemon:
        daemon.log.touch()
        yield daemon


def test_threads_write_whole_lines_beside_each_other(tmp_path: Path) -> None:
    """Two at once were an error of Python's poll, in whatever they had to do besides."""
    out = LogOutput(os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT))
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            done = [threads.submit(out.write, f"event={'x' * 50}\n") for _ in range(4000)]
        assert [one.exception() for one in done if one.exception()] == []
    finally:
        sys.setswitchinterval(before_s)

    assert (tmp_path / "log").read_text() == f"event={'x' * 50}\n" * 4000
    assert out.lost_lines == 0


def full(_: Path) -> int:
    return os.open("/dev/full", os.O_WRONLY)


def gone(_: Path) -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def unread(_: Path) -> int:
    return unread_pipe()


@pytest.mark.parametrize("log", [full, gone, unread])
def test_a_daemon_without_a_log_serves_reloads_and_ends(kepd: Kepd, log: Callable[[Path], int], tmp_path: Path) -> None:
    """It ended, or heard no SIGTERM any more."""
    descriptor = log(tmp_path)
    command = [str(PROGRAMS / "kepd"), "run", "--config", str(kepd.config), "-v", "9", "--planes", ""]
    kepd.process = subprocess.Popen(
        command, stdout=descriptor, stderr=descriptor, env=kepd.environment, text=True, cwd="/"
    )
    os.close(descriptor)
    kepd.wait(lambda: kepd.get("/livez")[0] == 200, "answers")
    for _ in range(20):
        assert kepd.ctl("config", "reload").returncode == 0
    metrics = kepd.get("/metrics")[1]
    lost = [line for line in metrics.splitlines() if line.startswith("kepd_log_lines_lost_total ")]

    assert float(lost[0].partition(" ")[2]) > 0 or log is unread
    assert kepd.end() == 0


def test_a_daemon_whose_standard_streams_are_closed_runs(kepd: Kepd) -> None:
    """Its sockets must not get their numbers, or the log would go there."""
    words = [str(PROGRAMS / "kepd"), "run", "--config", str(kepd.config)]
    kepd.process = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words], env=kepd.environment, text=True, cwd="/"
    )
    kepd.wait(lambda: kepd.get("/livez")[0] == 200, "answers")
    places = [str(Path(f"/proc/{kepd.process.pid}/fd/{number}").readlink()) for number in (0, 1, 2)]

    assert places == ["/dev/null"] * 3
    assert kepd.end() == 0
