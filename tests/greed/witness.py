# SPDX-License-Identifier: Apache-2.0
"""A daemon with its doors open, greedy callers beside it, and what others see meanwhile."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec

from tests.greed.greedy import GROUP
from tests.host.process import ROOT, Kepd

READER, FIRST_GREEDY = 44_001, 44_011
# A sign of life is due a half second before half of it.
WATCHDOG_S, LOOK_S = 8.0, 1.0
PROBE = """
import json, os, sys, time
import grpc
door, group, seconds, uid = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
# What Python loads late it may not find any more as another user.
with grpc.insecure_channel("unix:/nowhere") as none:
    try: none.unary_unary("/x")(b"", timeout=5)
    except grpc.RpcError: pass
os.setgroups([group]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
channel = grpc.insecure_channel("unix:" + door, options=[("grpc.default_authority", "localhost")])
call = channel.unary_unary("/kepd.v1.NodeService/GetNode")
call(b"", timeout=30, wait_for_ready=True)
until_s, took, failed = time.monotonic() + seconds, [], []
while time.monotonic() < until_s:
    began_s = time.perf_counter()
    try: call(b"", timeout=30)
    except grpc.RpcError as error: failed.append(f"{error.code().name}: {error.details()}")
    took.append(time.perf_counter() - began_s)
    time.sleep(0.01)
print(json.dumps([took, failed]), flush=True)
os._exit(0)
"""


class Seen(msgspec.Struct):
    """What others saw: seconds of each GetNode of another user and of each /livez, calls that failed, growth of the
    daemon's memory, its own processor time, the longest time without a sign of life, how late the loop was at most at
    a look each second, and what the greedy ones were told."""

    calls_s: list[float]
    pages_s: list[float]
    failed: list[str]
    grown_bytes: int
    cpu_s: float
    silent_s: float
    late_s: float
    told: list[str]

    @property
    def p99_s(self) -> float:
        return sorted(self.calls_s)[int(len(self.calls_s) * 0.99)]

    @property
    def page_s(self) -> float:
        return max(self.pages_s, default=0.0)


class Doors:
    """A real kepd, and the programs beside it."""

    def __init__(self, kepd: Kepd, signs: "Signs") -> None:
        self.kepd = kepd
        self.signs = signs
        self._users = count(FIRST_GREEDY)
        """None comes twice, for who was cut off is so for a while."""
        self.of = {"api": str(kepd.socket), "cri": str(kepd.folder / "run/cri/cri.sock"), "http": str(kepd.port)}

    def cpu_s(self) -> float:
        """Processor time that the daemon has used."""
        return _cpu_s(self.kepd.process.pid) if self.kepd.process is not None else 0.0

    def watch(self, seconds: float, greedy: Sequence[str] = ()) -> Seen:
        """`greedy`: kinds such as `api/ping`, each by a user of its own."""
        pid = self.kepd.process.pid if self.kepd.process is not None else 0
        before, cpu_s = _resident(pid), _cpu_s(pid)
        programs = [self._program(kind, seconds, next(self._users) if kind.startswith("api") else 0) for kind in greedy]
        words = [sys.executable, "-c", PROBE, self.of["api"], str(GROUP), str(seconds), str(READER)]
        probe = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        pages_s, most, late_s, looked_s = [], before, 0.0, 0.0
        self.signs.longest_s = 0.0
        while probe.poll() is None:
            began_s = time.perf_counter()
            assert self.kepd.get("/livez")[0] == 200
            pages_s.append(time.perf_counter() - began_s)
            most = max(most, _resident(pid))
            if began_s - looked_s > LOOK_S:
                looked_s, late_s = began_s, max(late_s, _late_s(self.kepd.get("/metrics")[1]))
            time.sleep(0.02)
        calls_s, failed = json.loads(probe.communicate()[0])
        told = [program.communicate(timeout=30)[0].strip() for program in programs]
        silent_s = self.signs.longest_s
        return Seen(calls_s, pages_s, failed, most - before, _cpu_s(pid) - cpu_s, silent_s, late_s, told)

    def _program(self, kind: str, seconds: float, uid: int) -> "subprocess.Popen[str]":
        words = [
            sys.executable,
            "-m",
            "tests.greed.greedy",
            self.of[kind.partition("/")[0]],
            kind,
            str(seconds),
            str(uid),
        ]
        return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


class Signs:
    """A service manager's end: how long it heard nothing at most."""

    def __init__(self, path: Path) -> None:
        self.longest_s = 0.0
        self._last_s = time.monotonic()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while b"WATCHDOG=never" not in (message := self._socket.recv(4096)):
            if b"WATCHDOG=1" in message:
                now_s = time.monotonic()
                self.longest_s, self._last_s = max(self.longest_s, now_s - self._last_s), now_s

    def close(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"WATCHDOG=never", str(path))
        self._thread.join()
        self._socket.close()


def _late_s(page: str) -> float:
    return next(
        (float(line.split()[1]) for line in page.splitlines() if line.startswith("kepd_loop_lag_seconds ")), 0.0
    )


@contextmanager
def open_doors(folder: Path, port: int, endpoint: str, *planes: str) -> Iterator[Doors]:
    for one in (folder, *folder.parents):
        if one.stat().st_uid == 0 and str(one) != "/":
            one.chmod(one.stat().st_mode | 0o011)
    notify = folder / "notify"
    signs = Signs(notify)
    watchdog = {"NOTIFY_SOCKET": str(notify), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
    with closing_signs(signs, notify), Kepd(folder, port, endpoint, **watchdog) as kepd:
        text = kepd.config.read_text().replace("readGroup: ''", f"readGroup: '{GROUP}'")
        kepd.config.write_text(text)
        kepd.start("--planes", ",".join(planes))
        kepd.wait(lambda: kepd.get("/livez")[0] == 200, "answers")
        kepd.wait(lambda: kepd.socket.exists() and kepd.ctl("status").returncode == 0, "serves")
        yield Doors(kepd, signs)


@contextmanager
def closing_signs(signs: Signs, path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        signs.close(path)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
