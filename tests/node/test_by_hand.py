# SPDX-License-Identifier: Apache-2.0
"""Manifests run by hand, as `scripts/run DIR` and `kepd run --manifests DIR` do: seen, ended, nothing left."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.host.process import PROGRAMS, ROOT
from tests.lab import Image, Lab
from tests.lab.outward import Outward

pytestmark = pytest.mark.node

WITHIN_S = 60.0
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {clusterIP: 10.96.0.77, selector: {app: hello}, ports: [{port: 80}]}
"""


class ByHand:
    """One that runs in the namespace of the lab, with its output in a file."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.folder = folder
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        (self.manifests / "hello.yaml").write_text((ROOT / "examples/hello.yaml").read_text() + SERVICE)
        self.log = folder / "log"
        settings = (f"runtime.endpoint={lab.endpoint}", "node.name=n1")
        given = [word for one in settings for word in ("--set", one)]
        command = lab.netns.command([str(PROGRAMS / "kepd"), "run", "--manifests", str(self.manifests), *given])
        with self.log.open("wb") as log:
            environment = {**os.environ, "TMPDIR": str(folder)}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def says(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.log.read_text())

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{what}\n{self.log.read_text()}"
            time.sleep(0.05)

    def wait_running(self) -> None:
        self.wait(lambda: self.says(r"pod=default/hello-n1 status=Running ip=\d"), "its pod runs")

    def daemon(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])


@pytest.fixture
def hand(lab: Lab, short_path: Path) -> Iterator[ByHand]:
    lab.preload(Image(name="kepd/hello"), "localhost/kepd/hello:1")
    made = ByHand(lab, short_path)
    yield made
    if made.process.poll() is None:
        made.process.send_signal(signal.SIGTERM)
        made.process.wait(WITHIN_S)


def left(lab: Lab, hand: ByHand) -> list[str]:
    tasks = [line for line in lab.containerd.ctr("tasks", "ls", "-q").splitlines() if line]
    folders = [str(path) for path in hand.folder.glob("kepd-by-hand-*")]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("**/kepd-by-hand-*") if hand.says(path.name)]
    rules = [line for line in lab.netns.run(["nft", "list", "tables"]).splitlines() if "kepd" in line]
    return [*tasks, *folders, *groups, *rules]


def test_it_runs_them_and_an_interrupt_ends_them_in_order(hand: ByHand, lab: Lab) -> None:
    hand.wait_running()
    shown = hand.says(r"look at them with: (.*)")
    assert shown
    listed = subprocess.run(shown[1], shell=True, capture_output=True, text=True, check=True, cwd="/")
    assert "hello-n1" in listed.stdout
    hand.wait(lambda: "kepd" in lab.netns.run(["nft", "list", "tables"]), "rules of the Service")

    hand.process.send_signal(signal.SIGINT)

    assert hand.process.wait(WITHIN_S) == 0
    assert hand.says("pod_stop_planned.*cause=removed.*\n(.*\n)*.*pod_gone pod=default/hello-n1")
    assert left(lab, hand) == []
    assert [path.name for path in hand.manifests.iterdir()] == ["hello.yaml"]


def test_a_manifest_that_comes_later_runs_too(hand: ByHand) -> None:
    hand.wait_running()
    text = (ROOT / "examples/hello.yaml").read_text()
    (hand.manifests / "more.yaml").write_text(text.replace("name: hello\n", "name: more\n", 1))

    hand.wait(lambda: hand.says("pod=default/more-n1 status=Running"), "the other runs")


def test_nothing_is_left_of_a_daemon_that_was_killed(hand: ByHand, lab: Lab) -> None:
    hand.wait_running()

    os.kill(hand.daemon(), signal.SIGKILL)

    assert hand.process.wait(WITHIN_S) == 128 + signal.SIGKILL
    assert left(lab, hand) == []


def test_the_script_starts_a_containerd_for_them_and_leaves_nothing(short_path: Path) -> None:
    manifests = short_path / "manifests"
    manifests.mkdir()
    shutil.copyfile(ROOT / "examples/hello.yaml", manifests / "hello.yaml")
    command = [sys.executable, "-m", "scripts.demo", str(manifests), "--set", "node.name=n1"]
    environment = {**os.environ, "TMPDIR": str(short_path)}
    with (short_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline_s = time.monotonic() + WITHIN_S
        while "status=Running" not in (text := (short_path / "log").read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < deadline_s, text
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(WITHIN_S)

    text = (short_path / "log").read_text()
    assert code == 0, text
    assert text.endswith("==> nothing is left behind\n")
    assert sorted(path.name for path in short_path.iterdir()) == ["log", "manifests"]


def test_a_lab_may_reach_registries_through_its_relay(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CONNECT from inside comes to a server outside, and the bytes of both sides pass."""
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    relay = Outward(lab.netns, 5058)
    relay.begin()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        threading.Thread(target=echo, daemon=True).start()
        with lab.netns.connect(5058) as client:
            client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nhello".encode())
            client.settimeout(10)
            said = b""
            while piece := client.recv(1000):
                said += piece
    relay.stop()

    assert said == b"HTTP/1.1 200 connected\r\n\r\nHELLO"
