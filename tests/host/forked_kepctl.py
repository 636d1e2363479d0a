# SPDX-License-Identifier: Apache-2.0
"""kepctl as a process of its own that has its modules already.

A test that waits for something asks dozens of times, and most of what a kepctl costs is its imports. One process
imports them and makes a child for each call, with the caller's arguments, environment, directory and output files.
"""

import atexit
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

MOST = 1 << 20
WITHIN_S = 30.0


def forked_kepctl(*arguments: str, within_s: float = WITHIN_S) -> subprocess.CompletedProcess[str]:
    """What `kepctl ARGUMENTS` prints, and its exit code."""
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        socket.socket(socket.AF_UNIX) as line,
    ):
        line.settimeout(within_s)
        line.connect(_address())
        request = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
        socket.send_fds(line, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
        try:
            code = int(line.recv(16))
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(["kepctl", *arguments], within_s) from error
        return subprocess.CompletedProcess(["kepctl", *arguments], code, _content(out), _content(err))


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@cache
def begin_serving() -> subprocess.Popen[str]:
    """This test process's server, which ends with it. The first call need not wait for imports if this came before."""
    command = [sys.executable, __file__, _path()]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end() -> None:
        # With its standard input it ends.
        server.communicate()
        shutil.rmtree(Path(_path()).parent)

    atexit.register(end)
    return server


@cache
def _path() -> str:
    """A file: a name without one would be that of a network namespace, and tests ask from several."""
    return f"{tempfile.mkdtemp(prefix='kepctl')}/s"


@cache
def _address() -> str:
    server = begin_serving()
    assert server.stdout is not None
    server.stdout.readline()
    return _path()


def _serve() -> None:
    for name in {module for module, _ in COMMANDS.values()}:
        import_module(f"agent.cli.commands.{name}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    print("ready", flush=True)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        line, _ = listener.accept()
        with line:
            if os.fork() == 0:
                _answer(line)
            _reap()


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(line: socket.socket) -> None:
    content, files, _, _ = socket.recv_fds(line, MOST, 2)
    child = os.fork()
    if child == 0:
        _become(json.loads(content), files)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        line.sendall(str(status).encode())
    os._exit(0)


def _become(request: dict[str, object], files: Sequence[int]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    os.chdir(str(request["folder"]))
    sys.argv = ["kepctl", *request["arguments"]]  # type: ignore[misc]
    code: object = 1
    try:
        main()
    except SystemExit as error:
        code = error.code
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    from importlib import import_module

    from agent.cli.main import COMMANDS, main

    _serve()
