# SPDX-License-Identifier: Apache-2.0
"""Who ends a kepctl by Ctrl-C, once or twice, is let go at once."""

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.exit_codes import INTERRUPTED
from tests.host.process import PROGRAMS, Kepd

# What hung did so in one of eight.
MANY = 16
PAUSES_S = (0.0, 0.0005, 0.002, 0.01)


@pytest.fixture
def kepd(short_path: Path, free_port: int) -> Iterator[Kepd]:
    with Kepd(short_path, free_port) as daemon:
        daemon.start("--planes", "").wait(daemon.socket.exists, "a socket")
        yield daemon


def watching(kepd: Kepd) -> "subprocess.Popen[bytes]":
    command = [str(PROGRAMS / "kepctl"), "--endpoint", str(kepd.socket), "get", "events", "-w"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    # gRPC has threads once there is a connection.
    tasks = Path(f"/proc/{child.pid}/task")
    while len(list(tasks.iterdir())) < 4:
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)
    return child


@pytest.mark.parametrize("count", [1, 2])
def test_a_watch_ends_by_interrupts_however_close_they_are(kepd: Kepd, count: int) -> None:
    dice = random.Random(count)
    codes, said = set(), set()
    for _ in range(MANY // 4):
        four = [watching(kepd) for _ in range(4)]
        time.sleep(dice.uniform(0, 0.3))
        for child in four:
            for _ in range(count):
                child.send_signal(signal.SIGINT)
                time.sleep(dice.choice(PAUSES_S))
        for child in four:
            try:
                said.add(child.communicate(timeout=20)[1])
            finally:
                child.kill()
            codes.add(child.returncode)

    assert codes == {INTERRUPTED}
    assert said <= {b"", b"\n"}, said
