# SPDX-License-Identifier: Apache-2.0
"""kepd as the first process of a PID namespace: nobody stays behind, signals arrive, exit codes are the daemon's."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.node

BEGIN = "import os, signal, subprocess, sys, time\nfrom agent.host.first_process import leave_first_place\n"
ORPHAN = """
leave_first_place()
assert os.getppid() == 1
orphan = int(subprocess.check_output(['/bin/sh', '-c', 'sleep 0.2 >/dev/null & echo $!']))
parent = open(f'/proc/{orphan}/stat').read().rpartition(')')[2].split()[1]
deadline = time.monotonic() + 20
while os.path.exists(f'/proc/{orphan}') and time.monotonic() < deadline:
    time.sleep(0.02)
print(parent, os.path.exists(f'/proc/{orphan}'))
sys.exit(7)
"""
KILLED = "leave_first_place()\nos.kill(os.getpid(), signal.SIGKILL)\n"
TOLD = """
leave_first_place()
signal.signal(signal.SIGTERM, lambda *_: (print('told'), sys.exit(0)))
print('ready', flush=True)
signal.pause()
"""


def command(code: str) -> list[str]:
    return ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", BEGIN + code]


def first(code: str) -> tuple[int, str]:
    done = subprocess.run(command(code), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.strip() + done.stderr.strip()


def test_processes_that_lost_their_parent_are_collected() -> None:
    """OCI-01: and the exit code is the daemon's."""
    assert first(ORPHAN) == (7, "1 False")


def test_an_end_by_signal_is_told_as_a_shell_tells_it() -> None:
    assert first(KILLED) == (128 + signal.SIGKILL, "")


def test_signals_are_passed_on() -> None:
    with subprocess.Popen(command(TOLD), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        subprocess.run(["kill", "-TERM", *children], check=True)

        assert running.stdout.read() == "told\n"
        assert running.wait(20) == 0


def test_any_other_process_goes_on_as_it_is() -> None:
    code = BEGIN + "before = os.getpid(); leave_first_place(); print(before == os.getpid())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "True\n"
