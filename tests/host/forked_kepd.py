# SPDX-License-Identifier: Apache-2.0
"""kepd as a process of its own that has its modules already.

Most of what the start of a daemon costs is its imports, and node tests start hundreds. One process imports them and
makes a child for each, with the caller's arguments, environment and log. Who tests what a process gets from the one
that executes it, such as its place or its limits, has it executed; `Kepd` in process.py knows when.
"""

import atexit
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

MOST = 1 << 20
# More than are open at a fork.
MOST_FILES = 256
PID_SIGNS = 8
SET_NAME = 15
"""Of prctl.h."""
NEW_NETWORK = 0x40000000
"""Of sched.h."""
LIBRARIES = ("agent.config.sources", "agent.host.plane_checks", "agent.host.compose", "agent.api.server", "grpc.aio")


class ForkedKepd:
    """What tests use of `subprocess.Popen`. Another process waits for it, and says how it ended."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[str], network: str = ""
    ) -> None:
        """`network`: the file of a network namespace for it."""
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(_address())
        request = {"arguments": arguments, "environment": dict(environment), "network": network}
        socket.send_fds(self._line, [json.dumps(request).encode() + b"\n"], [log.fileno()])
        self.pid = int(self._line.recv(PID_SIGNS, socket.MSG_WAITALL))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["kepd"], timeout or 0.0)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def _take(self) -> None:
        self.returncode = int(self._line.recv(16))
        self._line.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@cache
def _address() -> str:
    """That of this test process's server, which ends with it. A file: tests ask from several network namespaces."""
    path = f"{tempfile.mkdtemp(prefix='kepd')}/s"
    server = subprocess.Popen(
        [sys.executable, __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def end() -> None:
        # With its standard input it ends.
        server.communicate()
        shutil.rmtree(Path(path).parent)

    atexit.register(end)
    assert server.stdout is not None
    server.stdout.readline()
    return path


def _serve() -> None:
    # As kepd does it itself, before structlog looks for it.
    sys.modules["rich"] = None  # type: ignore[assignment]
    for name in LIBRARIES:
        import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    print("ready", flush=True)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        line, _ = listener.accept()
        if os.fork() == 0:
            _answer(line)
        line.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(line: socket.socket) -> None:
    """In a process that waits for the daemon."""
    text, (log,) = b"", (0,)
    while not text.endswith(b"\n"):
        some, files, _, _ = socket.recv_fds(line, MOST, 1)
        text, (log,) = text + some, files or [log]
    child = os.fork()
    if child == 0:
        _become(json.loads(text), log)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(log)
    line.sendall(f"{child:{PID_SIGNS}}".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        line.sendall(str(status).encode())
    os._exit(0)


def _become(request: dict[str, Any], log: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(log, number)
    code: object = 1
    try:
        os.closerange(3, MOST_FILES)
        _enter(request["network"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir("/")
        sys.argv = ["kepd", *request["arguments"]]
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - what Python would show at the end of a process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _enter(network: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(SET_NAME, b"kepd", 0, 0, 0)
    if network:
        place = os.open(network, os.O_RDONLY)
        if library.setns(place, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"no way into {network}")
        os.close(place)


if __name__ == "__main__":
    from importlib import import_module

    from agent.host.main import main

    _serve()
