# SPDX-License-Identifier: Apache-2.0
"""A real kepd as a child process, for tests of what only a process has: signals, exit codes, sockets, start-up."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.host.forked_kepctl import begin_serving, forked_kepctl
from tests.host.forked_kepd import ForkedKepd
from tests.host.shown_pods import listed_pods

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
# Before a command: it is executed all the same.
ITSELF = ("env",)
HEAD = "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"


class Kepd:
    """One daemon with directories of its own."""

    def __init__(
        self,
        folder: Path,
        port: int,
        endpoint: str = "",
        extra: str = "",
        prefix: Sequence[str] = (),
        **environment: str,
    ) -> None:
        """`prefix` is put before the command, to run it in another namespace for instance. In a test, a command without
        one, or with one that only chooses the network, is not executed: the daemon is a child of a process that has its
        modules."""
        self.folder = folder
        self.prefix = tuple(prefix)
        self.port = port
        self.socket = folder / "run" / "kepd.sock"
        self.manifests = folder / "manifests"
        self.manifests.mkdir(exist_ok=True)
        self.config = folder / "config.yaml"
        self.write_config(endpoint or f"unix://{folder}/none.sock", extra)
        # Pods of tests stay, however full the disk of the machine is that they run on.
        self.environment = {"KEPD_PODS__EVICTION__MODE": "off", **os.environ, **environment}
        self.process: subprocess.Popen[str] | ForkedKepd | None = None
        self.log = folder / "kepd.log"

    def write_config(self, endpoint: str, extra: str = "") -> None:
        """The configuration file, with more lines at its end."""
        self.config.write_text(
            HEAD + f"node: {{name: n1, stateDirectory: {self.folder}/state, runDirectory: {self.folder}/run}}\n"
            f"runtime: {{endpoint: '{endpoint}'}}\nmanifests: {{directory: {self.manifests}, debounce: 20ms}}\n"
            f"api: {{httpAddress: '127.0.0.1:{self.port}', readGroup: ''}}\n" + extra
        )

    def start(self, *flags: str) -> "Kepd":
        """Start it; `wait_http` tells when it answers."""
        begin_serving()
        arguments = ["run", "--config", str(self.config), *flags]
        way_in = self.prefix[1] if len(self.prefix) == 3 and self.prefix[0].endswith("nsenter") else ""
        network = way_in.removeprefix("--net=") if way_in.startswith("--net=") else ""
        given = [name for name, text in self.environment.items() if os.environ.get(name) != text]
        is_forked = "PYTEST_VERSION" in os.environ and not any(name.startswith("PYTHON") for name in given)
        with self.log.open("a") as log:
            if not is_forked or (self.prefix and not network):
                command = [*self.prefix, str(PROGRAMS / "kepd"), *arguments]
                self.process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=self.environment, text=True, cwd="/"
                )
            else:
                self.process = ForkedKepd(arguments, self.environment, log, network)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        except subprocess.TimeoutExpired:
            self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM, within_s: float = 30.0) -> int:
        """Signal it and wait; the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(within_s)

    def get(self, path: str) -> tuple[int, str]:
        """An HTTP page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait(self, condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
        """Until the condition holds; its value."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"not within {within_s} s: {what}; log:\n{self.log.read_text()}")

    def wait_ready(self) -> None:
        """Until every part is well."""
        self.wait(lambda: self.get("/readyz")[0] == 200, "ready")

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """kepctl, for as many calls as it takes."""
        return forked_kepctl("--endpoint", str(self.socket), *arguments)

    def json(self, *arguments: str) -> Any:
        """kepctl's JSON."""
        done = self.ctl(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def objects(self, plural: str) -> list[Any]:
        """All of a kind; none while its plane does not answer."""
        done = self.ctl("api", "ObjectService/List", json.dumps({"kind": plural}))
        listed: list[Any] = json.loads(done.stdout or "{}").get("objects", [])
        return listed

    def endpoints(self) -> list[Any]:
        """As their plane reports them."""
        return [endpoint for made in self.objects("endpoints") for endpoint in made["kepd"]["endpoints"]]

    def pods(self) -> list[Any]:
        """As the API has them."""
        return listed_pods(self.ctl)


def kepctl(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The client as a process."""
    given = {**os.environ, **(environment or {})}
    command = [str(PROGRAMS / "kepctl"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=given)


class NotifySocket:
    """A service manager's end of sd_notify."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(10)

    def next(self, word: str) -> str:
        """The next message with this word."""
        while True:
            message = self._socket.recv(4096).decode()
            if word in message:
                return message

    def close(self) -> None:
        """Done."""
        self._socket.close()
